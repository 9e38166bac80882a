// SPDX-License-Identifier: GPL-2.0-only
/*
 * Source of hot pages: a CXL 3.2 Hotness Monitoring Unit with NeoProf's vendor block. Checks what it says of itself, writes
 * its configuration, drains its hotlist. probe.c finds it.
 *
 * The device is not trusted: every capability is checked once, here; TAIL at each drain; units in hotlist.c.
 */
#include <linux/bitfield.h>
#include <linux/dev_printk.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/iopoll.h>
#include <linux/minmax.h>
#include <linux/pci.h>
#include <linux/slab.h>
#ifdef CONFIG_X86_64
#include <asm/cpufeature.h>
#include <asm/fpu/api.h>
#endif
#include "neoprof_regs.h"
#include "neotier.h"

#define NEOTIER_VERSION_MAJOR (NEOPROF_ID_VERSION_RESET >> 8)
#define NEOTIER_ANSWER_US 500000	/* for a reset of the largest tracker, with two orders of magnitude to spare */
#define NEOTIER_UNIT_SHIFT 12
#define NEOTIER_BITMAP_UNIT (256ULL << 20)

#define NEOTIER_GET(name, word) FIELD_GET(NEOPROF_##name##_MASK, (word))
#define NEOTIER_PUT(name, value) FIELD_PREP(NEOPROF_##name##_MASK, (u64)(value))

/*
 * Whole pages of hotlist, mapped write-combining so that a read across PCIe brings a line of eight reports; uncached it
 * brings one. Then regs ends where the window begins, and `behind` has what follows it.
 */
struct neotier_window {
	u32 begin, end;		/* bytes from the start of the register block; equal: no window */
	void __iomem *lines, *behind;
	u64 *copy;		/* NEOTIER_STREAM_LINES lines, aligned to one */
};

#define NEOTIER_LINE 64U
/* Copied with preemption off: 25 us at 800 ns a line. */
#define NEOTIER_STREAM_LINES 32U

/* What the source knows of its device, apart from its capabilities. */
struct neotier_chmu {
	void __iomem *regs;
	struct neotier_window window;
	u32 bitmap_offset;	/* bytes from the start of the register block, checked */
	u32 hotlist_offset;	/* likewise */
	u32 head;
	u64 cfg0, cfg1, cfg2, decay;	/* as last written */
};

static struct neotier_chmu *neotier_chmu(const struct neotier_device *dev)
{
	return dev->source_state;
}

static void __iomem *neotier_register(const struct neotier_device *dev, u32 offset)
{
	const struct neotier_chmu *chmu = neotier_chmu(dev);
	const struct neotier_window *window = &chmu->window;

	return window->behind && offset >= window->end ? window->behind + (offset - window->end) : chmu->regs + offset;
}

static u64 neotier_read(struct neotier_device *dev, u32 offset)
{
	return readq(neotier_register(dev, offset));
}

static void neotier_write(struct neotier_device *dev, u32 offset, u64 value)
{
	writeq(value, neotier_register(dev, offset));
}

#ifdef CONFIG_X86_64
static bool neotier_streams(void)
{
	return boot_cpu_has(X86_FEATURE_XMM4_1);
}

/* Intel SDM vol. 1, 12.10.3: streaming loads may be served from a buffer filled before a fence, never from before it. */
static void neotier_stream(void *to, const void __iomem *from, unsigned int lines)
{
	unsigned int i;

	kernel_fpu_begin();
	mb();
	for (i = 0; i < lines; i++, from += NEOTIER_LINE, to += NEOTIER_LINE)
		asm volatile("movntdqa   (%0), %%xmm0\n\t"
			     "movntdqa 16(%0), %%xmm1\n\t"
			     "movntdqa 32(%0), %%xmm2\n\t"
			     "movntdqa 48(%0), %%xmm3\n\t"
			     "movaps %%xmm0,   (%1)\n\t"
			     "movaps %%xmm1, 16(%1)\n\t"
			     "movaps %%xmm2, 32(%1)\n\t"
			     "movaps %%xmm3, 48(%1)"
			     : : "r"((const void __force *)from), "r"(to) : "memory");
	kernel_fpu_end();
}
#else
static bool neotier_streams(void)
{
	return false;
}

static void neotier_stream(void *to, const void __iomem *from, unsigned int lines)
{
}
#endif

/* Copies reports from `offset` on, of which `nr` lie one behind the other. Return: how many, at least 1. */
static unsigned int neotier_copy_reports(struct neotier_device *dev, u32 offset, unsigned int nr, u64 *to)
{
	const struct neotier_window *window = &neotier_chmu(dev)->window;
	u32 line = round_down(offset, NEOTIER_LINE), end;

	if (offset < window->begin || offset >= window->end) {
		*to = neotier_read(dev, offset);
		return 1;
	}
	end = min3(offset + nr * NEOPROF_HOTLIST_STRIDE, window->end, line + NEOTIER_STREAM_LINES * NEOTIER_LINE);
	neotier_stream(window->copy, window->lines + (line - window->begin), DIV_ROUND_UP(end - line, NEOTIER_LINE));
	memcpy(to, (void *)window->copy + (offset - line), end - offset);
	return (end - offset) / NEOPROF_HOTLIST_STRIDE;
}

/*
 * Whether the function is a profiler. ivshmem's ids are those of every virtual machine that shares memory, and what is in
 * a stranger's BAR is not ours to touch: one read, and the function is left as it was found.
 */
static bool neotier_chmu_ours(struct pci_dev *pdev)
{
	void __iomem *id;
	bool ours = false;
	u16 command;

	if ((pci_resource_flags(pdev, NEOTIER_BAR) & (IORESOURCE_MEM | IORESOURCE_UNSET)) != IORESOURCE_MEM ||
	    pci_resource_len(pdev, NEOTIER_BAR) < NEOPROF_SIZE)
		return false;
	pci_read_config_word(pdev, PCI_COMMAND, &command);
	if (!(command & PCI_COMMAND_MEMORY))
		pci_write_config_word(pdev, PCI_COMMAND, command | PCI_COMMAND_MEMORY);
	id = ioremap(pci_resource_start(pdev, NEOTIER_BAR) + NEOPROF_ID_OFFSET, sizeof(u64));
	if (id) {
		ours = FIELD_GET(NEOPROF_ID_MAGIC_MASK, readq(id)) == NEOPROF_ID_MAGIC_RESET;
		iounmap(id);
	}
	if (!(command & PCI_COMMAND_MEMORY))
		pci_write_config_word(pdev, PCI_COMMAND, command);
	return ours;
}

static const u32 neotier_scale_us[] = { 0, 100, 1000, 10000, 100000, 1000000 };

/* Scale and multiplier of an epoch; false when no pair of them makes exactly this length. */
static bool neotier_epoch_encode(u64 epoch_us, u64 *cfg1)
{
	u32 scale;

	for (scale = 1; scale < ARRAY_SIZE(neotier_scale_us); scale++) {
		u64 mult = epoch_us / neotier_scale_us[scale];

		if (epoch_us % neotier_scale_us[scale] || !mult || mult > FIELD_MAX(NEOPROF_CFG1_EPOCH_MULT_MASK))
			continue;
		*cfg1 = NEOTIER_PUT(CFG1_EPOCH_SCALE, scale) | NEOTIER_PUT(CFG1_EPOCH_MULT, mult);
		return true;
	}
	return false;
}

static bool neotier_chmu_epoch_valid(const struct neotier_device *dev, u64 epoch_us)
{
	u64 cfg1;

	return epoch_us >= dev->caps.epoch_min_us && epoch_us <= dev->caps.epoch_max_us &&
	       neotier_epoch_encode(epoch_us, &cfg1);
}

static u64 neotier_epoch_decode(u64 scale, u64 mult)
{
	scale = clamp(scale, 1, ARRAY_SIZE(neotier_scale_us) - 1);
	return neotier_scale_us[scale] * max(mult, 1);
}

static int neotier_chmu_caps(struct neotier_device *dev)
{
	struct neotier_chmu *chmu = neotier_chmu(dev);
	struct neotier_caps *caps = &dev->caps;
	u64 id, common0, common1, cap0, cap1, bitmap, hotlist, status, tracker, instance, end, span;
	u32 width;

	id = neotier_read(dev, NEOPROF_ID_OFFSET);
	if (NEOTIER_GET(ID_VERSION, id) >> 8 != NEOTIER_VERSION_MAJOR) {
		dev_err(&dev->pdev->dev, "register layout %llu.%llu, this driver knows %llu.x: use the driver that came with the device\n",
			NEOTIER_GET(ID_VERSION, id) >> 8, NEOTIER_GET(ID_VERSION, id) & 0xff,
			(u64)NEOTIER_VERSION_MAJOR);
		return -ENODEV;
	}
	common0 = neotier_read(dev, NEOPROF_COMMON_CAP0_OFFSET);
	common1 = neotier_read(dev, NEOPROF_COMMON_CAP1_OFFSET);
	if (NEOTIER_GET(COMMON_CAP0_VERSION, common0) != NEOPROF_COMMON_CAP0_VERSION_RESET ||
	    NEOTIER_GET(COMMON_CAP0_INSTANCES, common0) != NEOPROF_INSTANCES) {
		NEOTIER_REFUSE(dev, "COMMON_CAP0 0x%llx: version or number of CHMU instances unknown", common0);
		return -ENODEV;
	}

	/* All offsets are within an instance, and an instance ends where the vendor block begins at the latest. */
	instance = NEOPROF_INSTANCE_BASE;
	end = instance + NEOTIER_GET(COMMON_CAP1_INSTANCE_LENGTH, common1);
	cap0 = neotier_read(dev, NEOPROF_CAP0_OFFSET);
	cap1 = neotier_read(dev, NEOPROF_CAP1_OFFSET);
	bitmap = neotier_read(dev, NEOPROF_CAP2_OFFSET);
	hotlist = neotier_read(dev, NEOPROF_CAP3_OFFSET);
	caps->hotlist_size = NEOTIER_GET(CAP0_HOTLIST_SIZE, cap0);
	span = caps->hotlist_size * 8ULL;
	if (end > NEOPROF_ID_OFFSET || caps->hotlist_size < 2 || !IS_ALIGNED(bitmap | hotlist, 8) ||
	    bitmap < NEOPROF_RING_OFFSET + 8 - instance || bitmap > end || hotlist > end ||
	    hotlist < bitmap + NEOPROF_BITMAP_COUNT * 8 || instance + hotlist + span > end) {
		NEOTIER_REFUSE(dev, "bitmap at 0x%llx or hotlist at 0x%llx with %u entries does not fit an instance of 0x%llx bytes",
			       bitmap, hotlist, caps->hotlist_size, end - instance);
		return -EINVAL;
	}
	chmu->bitmap_offset = instance + bitmap;
	chmu->hotlist_offset = instance + hotlist;

	/* 2^n x 256 bytes. */
	if (!(NEOTIER_GET(CAP1_UNIT_SIZES, cap1) & BIT(NEOTIER_UNIT_SHIFT - 8))) {
		NEOTIER_REFUSE(dev, "CAP1 0x%llx: no 4 KiB units", cap1);
		return -EINVAL;
	}
	caps->downsampling_mask = NEOTIER_GET(CAP1_DOWNSAMPLING, cap1);
	caps->epoch_mode = NEOTIER_GET(CAP1_EPOCH_MODE, cap1);
	caps->always_on = NEOTIER_GET(CAP1_ALWAYS_ON, cap1);
	caps->random_downsampling = NEOTIER_GET(CAP1_RANDOM_DS, cap1);
	caps->epoch_min_us = neotier_epoch_decode(NEOTIER_GET(CAP0_EPOCH_MIN_SCALE, cap0),
						  NEOTIER_GET(CAP0_EPOCH_MIN_MULT, cap0));
	caps->epoch_max_us = neotier_epoch_decode(NEOTIER_GET(CAP0_EPOCH_MAX_SCALE, cap0),
						  NEOTIER_GET(CAP0_EPOCH_MAX_MULT, cap0));
	if (!(caps->downsampling_mask & 1) || !(caps->epoch_mode || caps->always_on) ||
	    caps->epoch_min_us > caps->epoch_max_us) {
		NEOTIER_REFUSE(dev, "CAP0 0x%llx, CAP1 0x%llx: no usable epoch, mode or down-sampling", cap0, cap1);
		return -EINVAL;
	}

	status = neotier_read(dev, NEOPROF_STATUS_OFFSET);
	tracker = neotier_read(dev, NEOPROF_TRACKER_OFFSET);
	caps->tracker_kind = NEOTIER_GET(TRACKER_KIND, tracker);
	caps->tracker_rows = NEOTIER_GET(TRACKER_ROWS, tracker);
	caps->tracker_log2_width = NEOTIER_GET(TRACKER_LOG2_WIDTH, tracker);
	caps->tracker_counter_bits = NEOTIER_GET(TRACKER_COUNTER_BITS, tracker);
	width = NEOTIER_GET(STATUS_COUNTER_WIDTH, status);
	if (width != 16 || !caps->tracker_counter_bits || caps->tracker_counter_bits > 32) {
		NEOTIER_REFUSE(dev, "hotlist counts of %u bits, tracker counters of %u bits", width,
			       caps->tracker_counter_bits);
		return -EINVAL;
	}
	caps->counter_max = GENMASK_ULL(caps->tracker_counter_bits - 1, 0);

	BUILD_BUG_ON(NEOPROF_WATCH_COUNT != NEOTIER_LEDGER_SLOTS);
	caps->watched = min_t(u32, NEOTIER_GET(ID_WATCHED, id), NEOPROF_WATCH_COUNT);
	caps->clock = NEOTIER_GET(ID_CLOCK, id);
	caps->peak_lines_per_tick = NEOTIER_GET(PEAK_LINES_PER_TICK, neotier_read(dev, NEOPROF_PEAK_OFFSET));
	caps->interrupts = NEOTIER_GET(CAP0_FILL_IRQ, cap0) && NEOTIER_GET(CAP0_OVERFLOW_IRQ, cap0);
	caps->message = NEOTIER_GET(CAP0_MSI, cap0);
	caps->serial = neotier_read(dev, NEOPROF_SERIAL_OFFSET);
	caps->hpa_base = neotier_read(dev, NEOPROF_HPA_BASE_OFFSET);
	caps->hpa_size = neotier_read(dev, NEOPROF_HPA_SIZE_OFFSET);
	if (!caps->hpa_size || !PAGE_ALIGNED(caps->hpa_base | caps->hpa_size) ||
	    caps->hpa_size > NEOPROF_BITMAP_COUNT * 64 * NEOTIER_BITMAP_UNIT ||
	    caps->hpa_base > BIT_ULL(MAX_PHYSMEM_BITS) - caps->hpa_size) {
		NEOTIER_REFUSE(dev, "memory of 0x%llx bytes at 0x%llx", caps->hpa_size, caps->hpa_base);
		return -EINVAL;
	}
	return 0;
}

static int neotier_chmu_map(struct neotier_device *dev)
{
	struct pci_dev *pdev = dev->pdev;
	int err = pcim_enable_device(pdev);

	if (err) {
		dev_err(&pdev->dev, "cannot enable the PCI function (%d)\n", err);
		return err;
	}
	/* Not pci_request_region(): whether unbinding gives it back depends on the kernel. */
	if (!devm_request_mem_region(&pdev->dev, pci_resource_start(pdev, NEOTIER_BAR),
				     pci_resource_len(pdev, NEOTIER_BAR), KBUILD_MODNAME)) {
		dev_err(&pdev->dev, "BAR %d is in use: unbind whatever has it, then bind the device again\n", NEOTIER_BAR);
		return -EBUSY;
	}
	neotier_chmu(dev)->regs = devm_ioremap(&pdev->dev, pci_resource_start(pdev, NEOTIER_BAR), NEOPROF_SIZE);
	return neotier_chmu(dev)->regs ? 0 : -ENOMEM;
}

/* Mapped anew, because the kernel gives a page one memory type at a time. */
static int neotier_chmu_map_window(struct neotier_device *dev)
{
	struct neotier_chmu *chmu = neotier_chmu(dev);
	struct neotier_window *window = &chmu->window;
	struct device *d = &dev->pdev->dev;
	resource_size_t bar = pci_resource_start(dev->pdev, NEOTIER_BAR);
	u32 begin = PAGE_ALIGN(chmu->hotlist_offset);
	u32 end = (chmu->hotlist_offset + dev->caps.hotlist_size * NEOPROF_HOTLIST_STRIDE) & PAGE_MASK;

	if (!neotier_streams() || begin >= end)
		return 0;
	/* Aligned to its size, as kmalloc() does for powers of two. */
	window->copy = kmalloc(NEOTIER_STREAM_LINES * NEOTIER_LINE, GFP_KERNEL);
	if (!window->copy)
		return -ENOMEM;
	devm_iounmap(d, chmu->regs);
	chmu->regs = devm_ioremap(d, bar, begin);
	window->lines = devm_ioremap_wc(d, bar + begin, end - begin);
	window->behind = devm_ioremap(d, bar + end, NEOPROF_SIZE - end);
	if (!chmu->regs || !window->lines || !window->behind)
		return -ENOMEM;
	window->begin = begin;
	window->end = end;
	return 0;
}

static int neotier_chmu_open(struct neotier_device *dev)
{
	dev->source_state = kzalloc(sizeof(struct neotier_chmu), GFP_KERNEL);
	if (!dev->source_state)
		return -ENOMEM;
	return neotier_chmu_map(dev) ? : neotier_chmu_caps(dev) ? : neotier_chmu_map_window(dev);
}

static void neotier_chmu_close(struct neotier_device *dev)
{
	if (dev->source_state)
		kfree(neotier_chmu(dev)->window.copy);
	kfree(dev->source_state);
	dev->source_state = NULL;
}

static bool neotier_settled(u64 status)
{
	return !NEOTIER_GET(STATUS_OP_IN_PROGRESS, status) && !NEOTIER_GET(STATUS_ENABLED, status);
}

static int neotier_chmu_start(struct neotier_device *dev)
{
	struct neotier_chmu *chmu = neotier_chmu(dev);
	u64 first = dev->region.dpa_base / NEOTIER_BITMAP_UNIT, status, ring;
	u64 end = DIV_ROUND_UP(dev->region.dpa_base + dev->region.dpa_size, NEOTIER_BITMAP_UNIT);
	unsigned int i, bit;

	lockdep_assert_held(&dev->lock);
	neotier_write(dev, NEOPROF_CFG0_OFFSET, NEOTIER_PUT(CFG0_THRESHOLD, dev->conf.threshold));
	if (read_poll_timeout(neotier_read, status, neotier_settled(status), 1000, NEOTIER_ANSWER_US, false, dev,
			      NEOPROF_STATUS_OFFSET))
		goto silent;
	neotier_write(dev, NEOPROF_CFG0_OFFSET,
		      NEOTIER_PUT(CFG0_THRESHOLD, dev->conf.threshold) | NEOPROF_CFG0_RESET_MASK);
	if (read_poll_timeout(neotier_read, status, neotier_settled(status), 1000, NEOTIER_ANSWER_US, false, dev,
			      NEOPROF_STATUS_OFFSET) ||
	    read_poll_timeout(neotier_read, ring, !(ring & (NEOPROF_RING_HEAD_MASK | NEOPROF_RING_TAIL_MASK)), 1000,
			      NEOTIER_ANSWER_US, false, dev, NEOPROF_RING_OFFSET))
		goto silent;

	chmu->head = 0;
	chmu->cfg0 = 0;
	chmu->cfg1 = 0;
	chmu->cfg2 = NEOTIER_GET(CFG2_FILL_LEVEL, neotier_read(dev, NEOPROF_CFG2_OFFSET));
	chmu->decay = ~0ULL;
	for (i = 0; i < NEOPROF_BITMAP_COUNT; i++) {
		u64 word = 0;

		for (bit = 0; bit < 64; bit++)
			if (64 * i + bit >= first && 64 * i + bit < end)
				word |= BIT_ULL(bit);
		neotier_write(dev, chmu->bitmap_offset + i * NEOPROF_BITMAP_STRIDE, word);
	}
	return 0;

silent:
	dev_err(&dev->pdev->dev, "no answer to CFG0.RESET within %u ms (STATUS 0x%llx): is the device, or its emulator, running?\n",
		NEOTIER_ANSWER_US / 1000, neotier_read(dev, NEOPROF_STATUS_OFFSET));
	return -ENODEV;
}

static void neotier_chmu_apply(struct neotier_device *dev, enum neotier_counting what)
{
	const struct neotier_conf *conf = &dev->conf;
	struct neotier_chmu *chmu = neotier_chmu(dev);
	/* Hardly a page has as much in an epoch. */
	u32 threshold = what == NEOTIER_COUNT_TOTALS ? dev->caps.counter_max : READ_ONCE(conf->threshold);
	u64 cfg0, cfg1 = 0, cfg2, decay;

	lockdep_assert_held(&dev->lock);
	neotier_epoch_encode(READ_ONCE(conf->epoch_us), &cfg1);
	cfg1 |= NEOTIER_PUT(CFG1_UNIT_SIZE, NEOTIER_UNIT_SHIFT) |
		NEOTIER_PUT(CFG1_DOWNSAMPLING, READ_ONCE(conf->downsampling_log2)) |
		NEOTIER_PUT(CFG1_MODE, READ_ONCE(conf->always_on));
	if (cfg1 != chmu->cfg1) {
		neotier_write(dev, NEOPROF_CFG1_OFFSET, cfg1);
		chmu->cfg1 = cfg1;
	}
	cfg2 = READ_ONCE(conf->fill_level);
	if (cfg2 != chmu->cfg2) {
		neotier_write(dev, NEOPROF_CFG2_OFFSET, NEOTIER_PUT(CFG2_FILL_LEVEL, cfg2));
		chmu->cfg2 = cfg2;
	}
	decay = NEOTIER_PUT(DECAY_SHIFT, READ_ONCE(conf->decay_shift));
	if (decay != chmu->decay) {
		neotier_write(dev, NEOPROF_DECAY_OFFSET, decay);
		chmu->decay = decay;
	}
	cfg0 = NEOTIER_PUT(CFG0_TRACK, READ_ONCE(conf->track)) |
	       NEOTIER_PUT(CFG0_RANDOM_DS, READ_ONCE(conf->random_downsampling)) |
	       NEOTIER_PUT(CFG0_OVERFLOW_IRQ_EN, READ_ONCE(conf->irq)) |
	       NEOTIER_PUT(CFG0_FILL_IRQ_EN, READ_ONCE(conf->irq)) |
	       NEOTIER_PUT(CFG0_ENABLE, what != NEOTIER_COUNT_NOTHING) |
	       NEOTIER_PUT(CFG0_THRESHOLD, threshold);
	if (cfg0 != chmu->cfg0) {
		if ((cfg0 ^ chmu->cfg0) & NEOPROF_CFG0_THRESHOLD_MASK)
			neotier_stat_add(dev, NEOTIER_STAT_THRESHOLDS, 1);
		neotier_write(dev, NEOPROF_CFG0_OFFSET, cfg0);
		chmu->cfg0 = cfg0;
	}
}

static int neotier_chmu_drain(struct neotier_device *dev, unsigned int max)
{
	struct neotier_chmu *chmu = neotier_chmu(dev);
	u64 ring = neotier_read(dev, NEOPROF_RING_OFFSET);
	u32 tail = NEOTIER_GET(RING_TAIL, ring);
	u32 head = chmu->head;
	unsigned int nr = 0;

	BUILD_BUG_ON(NEOPROF_HOTLIST_UNIT_SHIFT != NEOTIER_REPORT_UNIT_SHIFT ||
		     NEOPROF_HOTLIST_COUNT_MASK != NEOTIER_REPORT_COUNT_MASK);
	if (tail >= dev->caps.hotlist_size)
		return ring == ~0ULL ? -ENODEV : -EIO;
	if (head == tail)
		return 0;
	while (head != tail && nr < max) {
		u32 end = head < tail ? tail : dev->caps.hotlist_size;
		unsigned int copied = neotier_copy_reports(dev, chmu->hotlist_offset + head * NEOPROF_HOTLIST_STRIDE,
							   min(end - head, max - nr), dev->entries + nr);

		nr += copied;
		head += copied;
		if (head == dev->caps.hotlist_size)
			head = 0;
	}
	chmu->head = head;
	/* HEAD alone: TAIL in the other half belongs to the device. */
	writew(head, chmu->regs + NEOPROF_RING_OFFSET);
	return nr;
}

static unsigned int neotier_chmu_discard(struct neotier_device *dev)
{
	struct neotier_chmu *chmu = neotier_chmu(dev);
	u32 tail = NEOTIER_GET(RING_TAIL, neotier_read(dev, NEOPROF_RING_OFFSET));
	u32 head = chmu->head;

	if (tail >= dev->caps.hotlist_size || head == tail)
		return 0;
	chmu->head = tail;
	writew(tail, chmu->regs + NEOPROF_RING_OFFSET);
	return (tail + dev->caps.hotlist_size - head) % dev->caps.hotlist_size;
}

static void neotier_chmu_acknowledge(struct neotier_device *dev)
{
	neotier_write(dev, NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_OVERFLOW_MASK | NEOPROF_STATUS_FILL_MASK);
}

static u64 neotier_chmu_clock(struct neotier_device *dev)
{
	neotier_write(dev, NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_CLOCK_MASK);
	return neotier_read(dev, NEOPROF_CLOCK_OFFSET);
}

static int neotier_chmu_snapshot(struct neotier_device *dev, struct neotier_device_state *state, bool histogram)
{
	u64 word;
	int i;

	neotier_write(dev, NEOPROF_CTRL_OFFSET, NEOPROF_CTRL_SNAPSHOT_MASK);
	state->ticks = neotier_read(dev, NEOPROF_TICKS_OFFSET);
	state->epochs = neotier_read(dev, NEOPROF_EPOCHS_OFFSET);
	state->reads = neotier_read(dev, NEOPROF_READS_OFFSET);
	state->writes = neotier_read(dev, NEOPROF_WRITES_OFFSET);
	state->reported = neotier_read(dev, NEOPROF_REPORTED_OFFSET);
	state->lost_tap = neotier_read(dev, NEOPROF_LOST_TAP_OFFSET);
	state->lost_ring = neotier_read(dev, NEOPROF_LOST_RING_OFFSET);
	state->lost_candidates = neotier_read(dev, NEOPROF_LOST_CANDIDATES_OFFSET);
	state->saturated = neotier_read(dev, NEOPROF_SATURATED_OFFSET);
	state->occupancy = NEOTIER_GET(OCCUPANCY_UNITS, neotier_read(dev, NEOPROF_OCCUPANCY_OFFSET));
	state->error_bound = NEOTIER_GET(ERROR_BOUND, neotier_read(dev, NEOPROF_ERROR_OFFSET));
	word = neotier_read(dev, NEOPROF_HOT_OFFSET);
	state->hot_units = NEOTIER_GET(HOT_UNITS, word);
	BUILD_BUG_ON(NEOTIER_HISTOGRAM_BINS != 2 * NEOPROF_HISTOGRAM_COUNT);
	for (i = 0; histogram && i < NEOPROF_HISTOGRAM_COUNT; i++) {
		word = neotier_read(dev, NEOPROF_HISTOGRAM_OFFSET + i * NEOPROF_HISTOGRAM_STRIDE);
		state->histogram[2 * i] = NEOTIER_GET(HISTOGRAM_EVEN, word);
		state->histogram[2 * i + 1] = NEOTIER_GET(HISTOGRAM_ODD, word);
	}
	/* Who goes while this reads is gone at its end; neither value can be one that was counted. */
	return state->ticks == ~0ULL || word == ~0ULL ? -ENODEV : 0;
}

static void neotier_chmu_watch(struct neotier_device *dev, u32 slot, u64 unit)
{
	neotier_write(dev, NEOPROF_WATCH_OFFSET + slot * NEOPROF_WATCH_STRIDE, NEOTIER_PUT(WATCH_UNIT, unit));
}

static u32 neotier_chmu_watched(struct neotier_device *dev, u32 slot)
{
	return NEOTIER_GET(WATCH_COUNT, neotier_read(dev, NEOPROF_WATCH_OFFSET + slot * NEOPROF_WATCH_STRIDE));
}

static void neotier_chmu_default_conf(struct neotier_device *dev)
{
	struct neotier_conf *conf = &dev->conf;

	conf->start_threshold = clamp(neotier_policy_default_params.threshold, 1U, dev->caps.counter_max);
	conf->threshold = conf->start_threshold;
	conf->epoch_us = 50000;
	if (!neotier_chmu_epoch_valid(dev, conf->epoch_us))
		conf->epoch_us = dev->caps.epoch_min_us;
	conf->fill_level = FIELD_GET(NEOPROF_CFG2_FILL_LEVEL_MASK, NEOPROF_CFG2_INIT);
	conf->always_on = dev->caps.always_on;
	/*
	 * Reads: where caches allocate on a write, each line that is written back has been read before, and the read comes
	 * when the program wants the line while the write-back may come epochs later.
	 */
	conf->track = NEOTIER_TRACK_READS;
}

const struct neotier_source_ops neotier_source_chmu = {
	.ours = neotier_chmu_ours,
	.open = neotier_chmu_open,
	.close = neotier_chmu_close,
	.default_conf = neotier_chmu_default_conf,
	.start = neotier_chmu_start,
	.apply = neotier_chmu_apply,
	.drain = neotier_chmu_drain,
	.discard = neotier_chmu_discard,
	.acknowledge = neotier_chmu_acknowledge,
	.snapshot = neotier_chmu_snapshot,
	.watch = neotier_chmu_watch,
	.watched = neotier_chmu_watched,
	.clock = neotier_chmu_clock,
	.epoch_valid = neotier_chmu_epoch_valid,
};
