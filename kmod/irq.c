// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device's interrupts, fill level and overflow: one MSI-X message that wakes the device's thread, which reads the rest
 * from the registers. A device or a platform without them is served by the timer alone.
 */
#include <linux/interrupt.h>
#include <linux/pci.h>
#include "neotier.h"

static irqreturn_t neotier_irq(int irq, void *data)
{
	struct neotier_device *dev = data;

	atomic_inc(&dev->interrupts);
	neotier_promote_wake(dev);
	return IRQ_HANDLED;
}

void neotier_irq_init(struct neotier_device *dev)
{
	unsigned int vectors = dev->caps.message + 1;
	int err;

	if (!dev->caps.interrupts || pci_alloc_irq_vectors(dev->pdev, vectors, vectors, PCI_IRQ_MSIX) < 0)
		return;
	err = request_irq(pci_irq_vector(dev->pdev, dev->caps.message), neotier_irq, 0, KBUILD_MODNAME, dev);
	if (err) {
		dev_warn(&dev->pdev->dev, "no interrupt (%d): the timer alone serves the device\n", err);
		pci_free_irq_vectors(dev->pdev);
		return;
	}
	/* A message is a write by the device. */
	pci_set_master(dev->pdev);
	dev->has_irq = true;
}

void neotier_irq_exit(struct neotier_device *dev)
{
	if (!dev->has_irq)
		return;
	pci_clear_master(dev->pdev);
	free_irq(pci_irq_vector(dev->pdev, dev->caps.message), dev);
	pci_free_irq_vectors(dev->pdev);
	dev->has_irq = false;
}
