/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that the module is built for: 6.1 and later.
 */
#ifndef DWELL_IDLE_COMPAT_H
#define DWELL_IDLE_COMPAT_H

#include <linux/context_tracking.h>
#include <linux/cpu.h>
#include <linux/cpuidle.h>
#include <linux/kernel_stat.h>
#include <linux/version.h>
#include <asm/hardirq.h>
#include <asm/irqflags.h>

#define KERNEL_FROM(major, minor) \
	(LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

/*
 * Halts; entered and left with interrupts off. From 6.12 on the architecture's
 * own way to idle is exported, which is another one in a confidential guest.
 */
static __always_inline void dwell_halt(void)
{
#if KERNEL_FROM(6, 12)
	arch_cpu_idle();
#else
	raw_safe_halt();
	raw_local_irq_disable();
#endif
}

/*
 * Grows with each interrupt of this CPU: devices count in one place, and what
 * the architecture has vectors of its own for in another, all of whose members
 * are counters but for few that are the same before and after. Read with
 * interrupts off.
 */
static __always_inline u64 dwell_interrupts(void)
{
	const unsigned int *counters =
		(const unsigned int *)raw_cpu_ptr(&irq_stat);
	u64 sum = raw_cpu_read(kstat.irqs_sum);
	unsigned int at;

	for (at = 0; at < sizeof(irq_stat) / sizeof(*counters); at++)
		sum += counters[at];
	return sum;
}

/*
 * From here until dwell_rcu_idle_exit() RCU does not watch this CPU: nothing
 * may be traced.
 */
static __always_inline void dwell_rcu_idle_enter(void)
{
#if KERNEL_FROM(6, 3)
	ct_cpuidle_enter();
#else
	ct_idle_enter();
#endif
}

static __always_inline void dwell_rcu_idle_exit(void)
{
#if KERNEL_FROM(6, 3)
	ct_cpuidle_exit();
#else
	ct_idle_exit();
#endif
}

#endif
