// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which memory a profiler watches, where that memory is part of a CXL region: from the serial number of the CXL memory
 * device to its region, the region's interleave and the device's place in it.
 *
 * The CXL core's structures and functions are not for modules outside its tree, and its devices come and go at any moment.
 * So this reads what user space would, the way user space does: by path, in sysfs (Documentation/ABI/testing/sysfs-bus-cxl).
 * There the kernel itself sees to it that nothing goes away while it is read; a show function called from outside would
 * find a device half taken down. On a kernel without CXL there is no such path, and no symbol is missing.
 */
#include <linux/device.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/kstrtox.h>
#include <linux/log2.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include "neotier.h"

#define NEOTIER_CXL_DEVICES "/sys/bus/cxl/devices"
#define NEOTIER_NAME_MAX 32	/* of a device on the CXL bus: "decoder5.0" */

struct neotier_region_search {
	struct work_struct work;
	struct neotier_device *dev;
	struct neotier_region *found;
	int err;

	char *page;			/* scratch, what was read last */
	char path[128];			/* scratch */
	char region[NEOTIER_NAME_MAX], decoder[NEOTIER_NAME_MAX];
	u32 position;
};

/* Reads a file below a CXL device into the scratch page, without its line break. */
static int neotier_attr_read(struct neotier_region_search *search, const char *device, const char *name)
{
	struct file *file;
	loff_t pos = 0;
	ssize_t len;

	if (snprintf(search->path, sizeof(search->path), NEOTIER_CXL_DEVICES "/%s/%s", device, name) >=
	    (int)sizeof(search->path))
		return -ENAMETOOLONG;
	file = filp_open(search->path, O_RDONLY, 0);
	if (IS_ERR(file))
		return PTR_ERR(file);
	len = kernel_read(file, search->page, PAGE_SIZE - 1, &pos);
	filp_close(file, NULL);
	if (len < 0)
		return len;
	search->page[len] = '\0';
	strim(search->page);
	return 0;
}

static int neotier_attr_number(struct neotier_region_search *search, const char *device, const char *name, u64 *value)
{
	int err = neotier_attr_read(search, device, name);

	return err ? : kstrtou64(search->page, 0, value);
}

/* Whether this committed region has our memory device behind one of its targets. */
static bool neotier_region_is_ours(struct neotier_region_search *search, const char *region)
{
	u64 ways, commit, serial;
	u32 i;

	if (neotier_attr_number(search, region, "interleave_ways", &ways) ||
	    neotier_attr_number(search, region, "commit", &commit) || !commit)
		return false;
	for (i = 0; i < ways; i++) {
		char name[NEOTIER_NAME_MAX];

		snprintf(name, sizeof(name), "target%u", i);
		if (neotier_attr_read(search, region, name) ||
		    strscpy(search->decoder, search->page, sizeof(search->decoder)) <= 0)
			return false;
		/* Above a decoder is its endpoint, whose "uport" is the memory device. */
		if (neotier_attr_number(search, search->decoder, "../uport/serial", &serial) ||
		    serial != search->dev->caps.serial)
			continue;
		strscpy(search->region, region, sizeof(search->region));
		search->position = i;
		return true;
	}
	return false;
}

#define NEOTIER_REGIONS 16	/* names taken from the directory at a time */
struct neotier_regions {
	struct dir_context ctx;
	unsigned int nr;
	char names[NEOTIER_REGIONS][NEOTIER_NAME_MAX];
};

static bool neotier_region_note(struct dir_context *ctx, const char *name, int len, loff_t offset, u64 inode,
				unsigned int type)
{
	struct neotier_regions *regions = container_of(ctx, struct neotier_regions, ctx);

	if (len >= NEOTIER_NAME_MAX || !str_has_prefix(name, "region"))
		return true;
	if (regions->nr == NEOTIER_REGIONS)
		return false;
	memcpy(regions->names[regions->nr], name, len);
	regions->names[regions->nr++][len] = '\0';
	return true;
}

/* Return: 0; -EPROBE_DEFER when there is none; another errno. */
static int neotier_region_search(struct neotier_region_search *search)
{
	struct device *d = &search->dev->pdev->dev;
	struct neotier_regions *regions;
	struct file *dir;
	bool ours = false;
	unsigned int i;
	int err;

	dir = filp_open(NEOTIER_CXL_DEVICES, O_RDONLY | O_DIRECTORY, 0);
	if (IS_ERR(dir))
		return dev_err_probe(d, -EPROBE_DEFER, "waits for memory device 0x%llx: no " NEOTIER_CXL_DEVICES " here, or not yet\n",
				     search->dev->caps.serial);
	regions = kzalloc(sizeof(*regions), GFP_KERNEL);
	if (!regions) {
		err = -ENOMEM;
		goto close;
	}
	regions->ctx.actor = neotier_region_note;
	do {
		regions->nr = 0;
		err = iterate_dir(dir, &regions->ctx);
		for (i = 0; i < regions->nr && !ours; i++)
			ours = neotier_region_is_ours(search, regions->names[i]);
	} while (!err && !ours && regions->nr == NEOTIER_REGIONS);
	if (!err && !ours)
		err = dev_err_probe(d, -EPROBE_DEFER, "waits for a committed region of CXL memory device 0x%llx\n",
				    search->dev->caps.serial);
	kfree(regions);
close:
	filp_close(dir, NULL);
	return err;
}

static int neotier_region_read(struct neotier_region_search *search)
{
	struct neotier_region *region = search->found;
	struct device *d = &search->dev->pdev->dev;
	u64 ways, granularity;
	int err;

	err = neotier_attr_number(search, search->region, "resource", &region->hpa_base) ? :
	      neotier_attr_number(search, search->region, "size", &region->hpa_size) ? :
	      neotier_attr_number(search, search->region, "interleave_ways", &ways) ? :
	      neotier_attr_number(search, search->region, "interleave_granularity", &granularity) ? :
	      neotier_attr_number(search, search->decoder, "dpa_resource", &region->dpa_base) ? :
	      neotier_attr_number(search, search->decoder, "dpa_size", &region->dpa_size);
	if (err) {
		dev_err(d, "cannot read the attributes of CXL %s (%d)\n", search->region, err);
		return err;
	}
	region->position = search->position;
	if (!neotier_interleave_valid(&region->interleave, ways, granularity)) {
		dev_err(d, "%s is interleaved %llu ways by %llu bytes: this driver knows 1, 2, 4, 8 and 16 ways of 256 to 16384 bytes; make the region anew\n",
			search->region, ways, granularity);
		return -EOPNOTSUPP;
	}
	if (!region->dpa_size || region->hpa_size >> region->interleave.ways_log2 != region->dpa_size ||
	    !PAGE_ALIGNED(region->hpa_base | region->hpa_size | region->dpa_base | region->dpa_size) ||
	    region->hpa_base > BIT_ULL(MAX_PHYSMEM_BITS) - region->hpa_size) {
		dev_err(d, "%s: 0x%llx bytes at 0x%llx of %llu ways do not fit 0x%llx bytes of the device\n",
			search->region, region->hpa_size, region->hpa_base, ways, region->dpa_size);
		return -EINVAL;
	}
	return 0;
}

static void neotier_region_work(struct work_struct *work)
{
	struct neotier_region_search *search = container_of(work, struct neotier_region_search, work);

	search->err = neotier_region_search(search) ? : neotier_region_read(search);
}

/* In a work item, whose root directory and credentials are init's: who loads the module may have others, without /sys. */
int neotier_region_find(struct neotier_device *dev, struct neotier_region *region)
{
	struct neotier_region_search *search = kzalloc(sizeof(*search), GFP_KERNEL);
	int err = -ENOMEM;

	if (!search)
		return err;
	search->dev = dev;
	search->found = region;
	search->page = (char *)__get_free_page(GFP_KERNEL);
	if (!search->page)
		goto free;
	INIT_WORK(&search->work, neotier_region_work);
	queue_work(system_long_wq, &search->work);
	flush_work(&search->work);
	err = search->err;
	free_page((unsigned long)search->page);
free:
	kfree(search);
	return err;
}
