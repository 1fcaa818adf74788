// SPDX-License-Identifier: GPL-2.0
/*
 * The policies `leader` and `savings` of dwell, bit for bit. The Rust crate
 * dwell-policy has the reasons, the proof of the worst case, and where the
 * numbers come from; here is what is computed.
 *
 * leader: once the length of an episode is known, so is what every window
 * would have cost in it. Each class of moments has a row with such a sum per
 * window, in which old episodes fade. The window with the least sum is taken.
 *
 * savings: one sum of what polling for K would have saved.
 *
 * Both are kept between limits by an account: it holds what has been saved
 * against twice the cost of the optimum, at most 4 K, and a window may risk
 * half of it. With an empty account the window is K. Where others had the CPU
 * during a poll, the account is overdrawn, and there is no poll until a thousand
 * times as long has passed.
 */
#include "policy.h"

/* Cost units in one K. */
#define HALT		128
/* The windows in sixteenths of K, and in cost units. LOOK is 1 ns instead. */
static const u8 sixteenths[DWELL_WINDOWS] = { 0, 0, 3, 6, 10, 16, 24, 32 };
static const u16 window_units[DWELL_WINDOWS] = {
	0, 0, 24, 48, 80, 128, 192, 256
};

#define LOOK		1
#define LOOK_NS		1
/* Of a sum, 1/128 fades with each episode; the common row counts 1/16. */
#define MEMORY		7
#define COMMON		4
#define SAVINGS_MEMORY	4
#define BUSY_CLASSES	10
/* The half octave below a quarter of K, which is 2^5 units. */
#define BELOW_QUARTER	(2 * 5 - 1)
#define ACCOUNT_LIMIT	4
/* Time without polling for each nanosecond lost, of which 0.8 ms count at most. */
#define PER_LOSS	1000
#define MOST_LOST	800000
/* Halts that a busy and an idle time are counted up to. */
#define COUNTED		(PER_LOSS / 2)

static u64 min_of(u64 a, u64 b)
{
	return a < b ? a : b;
}

/* So much time has passed without polling. */
static void pass(struct dwell_policy *policy, u64 time)
{
	policy->balance += min_of(time, COUNTED * policy->halt_cost);
	if (policy->balance > 0)
		policy->balance = 0;
}

/* The window nearest to @wanted that risks at most half of the balance. */
static u64 allow(struct dwell_policy *policy, u64 busy, u64 wanted)
{
	u64 risk, low, high;

	if (policy->balance < 0)
		pass(policy, busy);
	if (policy->balance < 0)
		return 0;
	risk = policy->balance / 2;
	low = policy->halt_cost > risk ? policy->halt_cost - risk : 0;
	high = policy->halt_cost + risk;
	if (wanted < low)
		return low;
	return min_of(wanted, high);
}

/* Whether the length is the load's, so that it can be learned from. */
static bool settle(struct dwell_policy *policy, u64 idle, u64 passed,
		   u64 lost)
{
	u64 cost, credit, left;

	if (lost) {
		s64 pause = PER_LOSS * min_of(lost, MOST_LOST) +
			    COUNTED * policy->halt_cost;

		if (policy->balance > -pause)
			policy->balance = -pause;
		return false;
	}
	if (policy->balance < 0) {
		pass(policy, passed);
		return false;
	}
	cost = idle <= policy->window ? idle :
					policy->window + policy->halt_cost;
	credit = policy->balance + 2 * min_of(idle, policy->halt_cost);
	left = credit > cost ? credit - cost : 0;
	policy->balance = min_of(left, ACCOUNT_LIMIT * policy->halt_cost);
	return true;
}

/* @time in cost units, rounded up, at most 8 K: the product is below 2^43. */
static u16 units_of(const struct dwell_policy *policy, u64 time)
{
	u64 most = policy->halt_cost << 3;
	u64 product = min_of(time, most) * policy->leader.units_per_ns;

	return (product + 0xffffffffU) >> 32;
}

/* Half octaves of the busy time from K/4 to 4 K, one below, one above. */
static u32 busy_class(u32 units)
{
	u32 octave, half_octave;

	units |= 1;
	octave = 31 - __builtin_clz(units);
	half_octave = 2 * octave + (((units << 1) >> octave) & 1);
	if (half_octave <= BELOW_QUARTER)
		return 0;
	return min_of(half_octave - BELOW_QUARTER, BUSY_CLASSES - 1);
}

static u64 leader_window(struct dwell_policy *policy, u64 busy)
{
	struct dwell_leader *leader = &policy->leader;
	u32 class = busy_class(units_of(policy, busy)) * 3 + leader->last;
	u32 best = 0, least = ~0U, i;
	const u16 *row;

	leader->row = class * 2 + leader->before_is_long;
	row = leader->rows[leader->row];
	for (i = 0; i < DWELL_WINDOWS; i++) {
		u32 sum = row[i] + (leader->common[i] >> COMMON);

		/* Of equals the shortest window. */
		if (sum < least) {
			least = sum;
			best = i;
		}
	}
	if (best == LOOK)
		return LOOK_NS;
	return (policy->halt_cost * sixteenths[best]) >> 4;
}

static void add(u16 *sum, u16 cost)
{
	*sum = *sum - (*sum >> MEMORY) + cost;
}

static void leader_observe(struct dwell_policy *policy, u64 idle)
{
	struct dwell_leader *leader = &policy->leader;
	u16 *row = leader->rows[leader->row];
	u16 units = units_of(policy, idle);
	u32 i;

	for (i = 0; i < DWELL_WINDOWS; i++) {
		u16 cost = units <= window_units[i] ? units :
						      window_units[i] + HALT;

		if (i == LOOK)
			cost = idle <= LOOK_NS ? 0 : HALT;
		add(&row[i], cost);
		add(&leader->common[i], cost);
	}
	leader->before_is_long = leader->last_is_long;
	leader->last_is_long = units > HALT;
	leader->last = (units > HALT / 2) + (units > 3 * HALT);
}

static void savings_observe(struct dwell_policy *policy, u64 idle)
{
	s64 halt_cost = policy->halt_cost;
	s64 saved = -halt_cost;

	if (idle <= policy->halt_cost)
		saved = halt_cost - (s64)idle;
	policy->savings += saved - (policy->savings >> SAVINGS_MEMORY);
}

void dwell_policy_init(struct dwell_policy *policy, enum dwell_rule rule,
		       u64 halt_cost, u64 wake_latency, u64 max_window)
{
	u64 cost = min_of(halt_cost, 0xffffffffU);

	*policy = (struct dwell_policy) {
		.rule = rule,
		.halt_cost = cost,
		.balance = ACCOUNT_LIMIT * cost,
		.wake_latency = wake_latency,
		.max_window = max_window,
	};
	if (rule == DWELL_LEADER && cost)
		policy->leader.units_per_ns = ((u64)HALT << 32) / cost;
}

u64 dwell_policy_window(struct dwell_policy *policy, u64 busy)
{
	u64 window = 0;

	switch (policy->rule) {
	case DWELL_LEADER:
		window = allow(policy, busy, leader_window(policy, busy));
		break;
	case DWELL_SAVINGS:
		window = allow(policy, busy,
			       policy->savings > 0 ? policy->halt_cost : 0);
		break;
	case DWELL_FIXED:
		window = policy->max_window;
		break;
	default:
		break;
	}
	policy->window = min_of(window, policy->max_window);
	return policy->window;
}

u64 dwell_policy_longest_gap(const struct dwell_policy *policy)
{
	return ACCOUNT_LIMIT * policy->halt_cost;
}

void dwell_policy_observe(struct dwell_policy *policy, u64 idle, u64 lost)
{
	/* With the wakeup latency. */
	u64 passed = idle;

	if (policy->rule != DWELL_LEADER && policy->rule != DWELL_SAVINGS)
		return;
	/* A halted CPU runs later than the wakeup; it did outlast the window. */
	if (idle > policy->window) {
		u64 wakeup = idle > policy->wake_latency ?
				     idle - policy->wake_latency : 0;

		idle = wakeup > policy->window ? wakeup : policy->window + 1;
	}
	if (!settle(policy, idle, passed, lost))
		return;
	if (policy->rule == DWELL_LEADER)
		leader_observe(policy, idle);
	else
		savings_observe(policy, idle);
}
