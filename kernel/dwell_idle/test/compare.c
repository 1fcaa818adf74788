// SPDX-License-Identifier: GPL-2.0
/*
 * Reads what the Rust policies decided, decides the same with policy.c, and
 * compares every window. The stream on standard input has records of five u64
 * in the machine's byte order:
 *
 *   0, rule, halt cost, wake latency, longest window   a series begins
 *   1, busy, idle, window, lost   an episode, its window in Rust, and for how
 *                                 long its poll was preempted
 *
 * Prints the count of series and episodes; exits with 1 at the first window
 * that differs, with 2 if the stream is not as described.
 */
#include <inttypes.h>
#include <stdio.h>
#include "../policy.h"

#define RECORDS 4096

static u64 records[RECORDS][5];

int main(void)
{
	u64 series = 0, episodes = 0, polls = 0, losses = 0;
	struct dwell_policy policy;
	size_t count, i;

	while ((count = fread(records, sizeof(records[0]), RECORDS, stdin))) {
		for (i = 0; i < count; i++) {
			const u64 *r = records[i];
			u64 window;

			if (r[0] == 0 && r[1] < DWELL_RULES) {
				dwell_policy_init(&policy, r[1], r[2], r[3], r[4]);
				series++;
				continue;
			}
			if (r[0] != 1 || !series) {
				fprintf(stderr, "unknown record\n");
				return 2;
			}
			window = dwell_policy_window(&policy, r[1]);
			if (window != r[3]) {
				fprintf(stderr,
					"series %" PRIu64 ", episode %" PRIu64
					": window %" PRIu64 ", in Rust %" PRIu64 "\n",
					series, episodes, window, r[3]);
				return 1;
			}
			dwell_policy_observe(&policy, r[2], r[4]);
			episodes++;
			polls += window > 0;
			losses += r[4] > 0;
		}
	}
	if (ferror(stdin))
		return 2;
	printf("%" PRIu64 " series, %" PRIu64 " episodes, %" PRIu64
	       " with a window above 0, %" PRIu64
	       " preempted: every window is equal\n",
	       series, episodes, polls, losses);
	return 0;
}
