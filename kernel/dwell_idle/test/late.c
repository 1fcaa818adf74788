// SPDX-License-Identifier: GPL-2.0
/*
 * A timer that an interrupt arms on a CPU that polls for work, and that wakes
 * no task. The interrupt is of QEMU's device edu; the timer of the timer wheel
 * is due after the window of the poll. Loading it runs the trials, reports how
 * late the timers were, and fails.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/timer.h>

/* The registers of edu. */
#define STATUS		0x24
#define RAISE		0x60
#define ACKNOWLEDGE	0x64

/* The CPU that polls; the trials run on another. */
#define CPU		1
/*
 * Ten ticks of 4 ms. A tick is up to three late where another CPU of the
 * emulator runs; a timer that is not seen waits for some other interrupt.
 */
#define LATE_NS		(40 * NSEC_PER_MSEC)
#define GIVEN_UP_NS	(5 * NSEC_PER_SEC)

/* From the interrupt that ends its halt to the one that arms the timer. */
static unsigned int gap_us = 3000;
module_param(gap_us, uint, 0444);
static unsigned int trials = 40;
module_param(trials, uint, 0444);
static unsigned int wait_ms = 20;
module_param(wait_ms, uint, 0444);

static void __iomem *registers;
static struct timer_list timer;
static bool arms, is_pending;
static u64 due, late;

static void fired(struct timer_list *unused)
{
	WRITE_ONCE(late, ktime_get_ns() - due);
	smp_store_release(&is_pending, false);
}

/* As a driver of a network card or a disk does, on the CPU of the interrupt. */
static irqreturn_t interrupted(int irq, void *unused)
{
	u32 status = ioread32(registers + STATUS);

	if (!status)
		return IRQ_NONE;
	iowrite32(status, registers + ACKNOWLEDGE);
	if (READ_ONCE(arms)) {
		WRITE_ONCE(arms, false);
		due = ktime_get_ns() + wait_ms * NSEC_PER_MSEC;
		timer.expires = jiffies + msecs_to_jiffies(wait_ms);
		add_timer_on(&timer, smp_processor_id());
	}
	return IRQ_HANDLED;
}

static u64 try(void)
{
	u64 begun;

	msleep(300);
	WRITE_ONCE(is_pending, true);
	/* Ends a halt of that CPU, which begins to poll again. */
	iowrite32(1, registers + RAISE);
	udelay(gap_us);
	WRITE_ONCE(arms, true);
	iowrite32(1, registers + RAISE);
	begun = ktime_get_ns();
	while (smp_load_acquire(&is_pending)) {
		if (ktime_get_ns() - begun > GIVEN_UP_NS) {
			timer_delete_sync(&timer);
			return GIVEN_UP_NS;
		}
		msleep(1);
	}
	return READ_ONCE(late);
}

static void run(void)
{
	unsigned int trial, late_ones = 0;
	u64 most = 0;

	for (trial = 0; trial < trials; trial++) {
		u64 by = try();

		late_ones += by > LATE_NS;
		most = max(most, by);
	}
	pr_info("late %u of %u, at most %llu us\n", late_ones, trials,
		most / NSEC_PER_USEC);
}

static int __init late_init(void)
{
	struct pci_dev *device = pci_get_device(0x1234, 0x11e8, NULL);
	int err;

	if (!device)
		return -ENODEV;
	err = pci_enable_device(device);
	if (err)
		goto put;
	pci_set_master(device);
	err = -ENOMEM;
	registers = pci_iomap(device, 0, 4096);
	if (!registers)
		goto disable;
	err = pci_alloc_irq_vectors(device, 1, 1, PCI_IRQ_MSI);
	if (err < 0)
		goto unmap;
	timer_setup(&timer, fired, TIMER_PINNED);
	err = request_irq(pci_irq_vector(device, 0), interrupted, 0,
			  KBUILD_MODNAME, device);
	if (err)
		goto free;
	irq_set_affinity_hint(pci_irq_vector(device, 0), cpumask_of(CPU));
	run();
	irq_set_affinity_hint(pci_irq_vector(device, 0), NULL);
	free_irq(pci_irq_vector(device, 0), device);
	/* There is nothing to stay for. */
	err = -EAGAIN;
free:
	pci_free_irq_vectors(device);
unmap:
	pci_iounmap(device, registers);
disable:
	pci_disable_device(device);
put:
	pci_dev_put(device);
	return err;
}
module_init(late_init);

MODULE_DESCRIPTION("A timer that an interrupt arms while its CPU polls");
MODULE_LICENSE("GPL");
