// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which memory a profiler watches, where that memory is part of a CXL region: from the serial number of the CXL memory
 * device to its region, the region's interleave and the device's place in it.
 *
 * The CXL core exports its bus, but neither its structures nor its functions are for modules outside its tree. So this
 * reads what user space would: the attributes of the devices on that bus (Documentation/ABI/testing/sysfs-bus-cxl),
 * through their own show functions, and the link "uport" from an endpoint to its memory device. The bus itself is taken by
 * name: on a kernel without CXL there is none, and no symbol is missing.
 */
#include <linux/device.h>
#include <linux/gfp.h>
#include <linux/kernfs.h>
#include <linux/kstrtox.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/string.h>
#include "neotier.h"

/* Not in any header of ours to include; symbol_get() wants a declaration. */
extern struct bus_type cxl_bus_type;

struct neotier_region_search {
	struct bus_type *bus;
	char *page;			/* scratch, for show functions */
	u64 serial;
	struct device *memdev, *region, *decoder;	/* found; with a reference each */
	u32 position;
};

/* Reads an attribute of @d into the scratch page, without its line break. */
static int neotier_attr_read(struct neotier_region_search *search, struct device *d, const char *name)
{
	const struct attribute_group **groups = d->type ? d->type->groups : NULL;
	struct attribute **attrs;

	for (; groups && *groups; groups++) {
		for (attrs = (*groups)->attrs; attrs && *attrs; attrs++) {
			struct device_attribute *attr = container_of(*attrs, struct device_attribute, attr);
			ssize_t len;

			if (strcmp((*attrs)->name, name))
				continue;
			if (!attr->show)
				return -EACCES;
			len = attr->show(d, attr, search->page);
			if (len < 0)
				return len;
			search->page[min_t(size_t, len, PAGE_SIZE - 1)] = '\0';
			strim(search->page);
			return 0;
		}
	}
	return -ENOENT;
}

static int neotier_attr_number(struct neotier_region_search *search, struct device *d, const char *name, u64 *value)
{
	int err = neotier_attr_read(search, d, name);

	return err ? : kstrtou64(search->page, 0, value);
}

static int neotier_match_memdev(struct device *d, void *data)
{
	struct neotier_region_search *search = data;
	u64 serial;

	if (neotier_attr_number(search, d, "serial", &serial) || serial != search->serial)
		return 0;
	search->memdev = get_device(d);
	return 1;
}

/* Whether the endpoint that a decoder belongs to leads to our memory device. */
static bool neotier_decoder_is_ours(struct neotier_region_search *search, struct device *decoder)
{
	struct kernfs_node *link;
	bool ours = false;

	if (!decoder->parent)
		return false;
	link = kernfs_find_and_get(decoder->parent->kobj.sd, "uport");
	if (link && kernfs_type(link) == KERNFS_LINK)
		ours = link->symlink.target_kn == search->memdev->kobj.sd;
	kernfs_put(link);
	return ours;
}

static int neotier_match_region(struct device *d, void *data)
{
	struct neotier_region_search *search = data;
	u64 ways, commit;
	u32 i;

	if (neotier_attr_number(search, d, "interleave_ways", &ways) || neotier_attr_read(search, d, "target0") ||
	    neotier_attr_number(search, d, "commit", &commit) || !commit)
		return 0;
	for (i = 0; i < ways; i++) {
		char name[16];
		struct device *decoder;

		snprintf(name, sizeof(name), "target%u", i);
		if (neotier_attr_read(search, d, name))
			return 0;
		decoder = bus_find_device_by_name(search->bus, NULL, search->page);
		if (!decoder)
			continue;
		if (neotier_decoder_is_ours(search, decoder)) {
			search->region = get_device(d);
			search->decoder = decoder;
			search->position = i;
			return 1;
		}
		put_device(decoder);
	}
	return 0;
}

static int neotier_region_read(struct neotier_device *dev, struct neotier_region_search *search,
			       struct neotier_region *region)
{
	u64 ways, granularity;
	int err;

	err = neotier_attr_number(search, search->region, "resource", &region->hpa_base) ? :
	      neotier_attr_number(search, search->region, "size", &region->hpa_size) ? :
	      neotier_attr_number(search, search->region, "interleave_ways", &ways) ? :
	      neotier_attr_number(search, search->region, "interleave_granularity", &granularity) ? :
	      neotier_attr_number(search, search->decoder, "dpa_resource", &region->dpa_base) ? :
	      neotier_attr_number(search, search->decoder, "dpa_size", &region->dpa_size);
	if (err) {
		dev_err(&dev->pdev->dev, "cannot read the attributes of CXL %s (%d)\n", dev_name(search->region), err);
		return err;
	}
	region->position = search->position;
	if (!neotier_interleave_valid(&region->interleave, ways, granularity)) {
		dev_err(&dev->pdev->dev, "%s is interleaved %llu ways by %llu bytes: this driver knows 1, 2, 4, 8 and 16 ways of 256 to 16384 bytes; make the region anew\n",
			dev_name(search->region), ways, granularity);
		return -EOPNOTSUPP;
	}
	if (!region->dpa_size || region->hpa_size >> region->interleave.ways_log2 != region->dpa_size ||
	    !PAGE_ALIGNED(region->hpa_base | region->hpa_size | region->dpa_base | region->dpa_size) ||
	    region->hpa_base > BIT_ULL(MAX_PHYSMEM_BITS) - region->hpa_size) {
		dev_err(&dev->pdev->dev, "%s: 0x%llx bytes at 0x%llx of %llu ways do not fit 0x%llx bytes of the device\n",
			dev_name(search->region), region->hpa_size, region->hpa_base, ways, region->dpa_size);
		return -EINVAL;
	}
	return 0;
}

int neotier_region_find(struct neotier_device *dev, struct neotier_region *region)
{
	struct bus_type *bus = symbol_get(cxl_bus_type);
	struct neotier_region_search search = { .bus = bus, .serial = dev->caps.serial };
	int err;

	if (!bus)
		return dev_err_probe(&dev->pdev->dev, -EPROBE_DEFER,
				     "waits for memory device 0x%llx: this kernel has no CXL bus, or not yet\n",
				     search.serial);
	search.page = (char *)__get_free_page(GFP_KERNEL);
	if (!search.page) {
		err = -ENOMEM;
		goto put_bus;
	}
	if (!bus_for_each_dev(bus, NULL, &search, neotier_match_memdev))
		err = dev_err_probe(&dev->pdev->dev, -EPROBE_DEFER, "waits for CXL memory device 0x%llx\n", search.serial);
	else if (!bus_for_each_dev(bus, NULL, &search, neotier_match_region))
		err = dev_err_probe(&dev->pdev->dev, -EPROBE_DEFER, "waits for a committed region of CXL %s\n",
				    dev_name(search.memdev));
	else
		err = neotier_region_read(dev, &search, region);
	put_device(search.decoder);
	put_device(search.region);
	put_device(search.memdev);
	free_page((unsigned long)search.page);
put_bus:
	symbol_put(cxl_bus_type);
	return err;
}
