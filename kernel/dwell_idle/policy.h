/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How long should an idle CPU poll before it halts? Two policies that learn
 * from every episode, in integers, without the kernel: the same file is
 * compiled into the module and into a program in user space that compares it
 * with the Rust crate dwell-policy.
 *
 * An episode is the time from "nothing to do" to the wakeup. The window is how
 * long the CPU polls before it halts. K is the halt cost: the CPU time that a
 * halt and the wakeup from it are worth. All times are in nanoseconds.
 */
#ifndef DWELL_IDLE_POLICY_H
#define DWELL_IDLE_POLICY_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

enum dwell_rule {
	/* The window that would have cost least in similar episodes. */
	DWELL_LEADER,
	/* Poll for K while that has saved more than it has cost. */
	DWELL_SAVINGS,
	/* Poll for the maximum window; learns nothing. */
	DWELL_FIXED,
	/* Halt at once. */
	DWELL_NEVER,
	DWELL_RULES,
};

/* Windows that compete: none, one look, and six parts of K. */
#define DWELL_WINDOWS	8
/* Classes of moments: busy time, last length, whether the one before was long. */
#define DWELL_ROWS	(10 * 3 * 2)

struct dwell_leader {
	/* What each window has cost lately in moments of one class, in K/128. */
	u16 rows[DWELL_ROWS][DWELL_WINDOWS];
	/* The same in all moments. */
	u16 common[DWELL_WINDOWS];
	/* K/128 in a nanosecond, times 2^32. */
	u64 units_per_ns;
	/* The row in which the present episode will be counted. */
	u8 row;
	/* Class of the last length: 0, 1, 2. */
	u8 last;
	/* Whether the last length was above K, and the one before it. */
	u8 last_is_long;
	u8 before_is_long;
};

struct dwell_policy {
	enum dwell_rule rule;
	/* K, at most 2^32 - 1. */
	u64 halt_cost;
	/*
	 * What the learner may still lose against twice the optimum; where
	 * negative, the time that has to pass before it polls again, since
	 * others want the CPU.
	 */
	s64 balance;
	/* How much later than the wakeup a halted CPU runs again. */
	u64 wake_latency;
	/* No window is longer. */
	u64 max_window;
	/* The window of the present episode. */
	u64 window;
	union {
		struct dwell_leader leader;
		s64 savings;
	};
};

/*
 * Begins without experience. @halt_cost is K, @wake_latency what a halt adds
 * to the measured length of an episode.
 */
void dwell_policy_init(struct dwell_policy *policy, enum dwell_rule rule,
		       u64 halt_cost, u64 wake_latency, u64 max_window);

/* The window of the episode that begins now, after @busy ns of work. */
u64 dwell_policy_window(struct dwell_policy *policy, u64 busy);

/*
 * Learns from the end of that episode, measured as @idle ns long. @lost is for
 * how long others had the CPU during the poll, 0 if they had not.
 */
void dwell_policy_observe(struct dwell_policy *policy, u64 idle, u64 lost);

/*
 * The longest gap between two looks of a poll that is no preemption. Every
 * window of a policy that learns is shorter, so that a preempted poll is over.
 */
u64 dwell_policy_longest_gap(const struct dwell_policy *policy);

#endif
