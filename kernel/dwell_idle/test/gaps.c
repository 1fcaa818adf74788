// SPDX-License-Identifier: GPL-2.0
/*
 * A load with gaps of a known pattern: works, then sleeps for a gap, on CPU 0.
 *
 * usage: gaps PATTERN SEED COUNT
 *   constant     30 us
 *   exponential  mean 60 us: nothing to learn beyond a window
 *   bimodal      10 us of seven in ten, else 400 us, without order
 *   rare         the same, but 10 us of nine in ten
 *   told         as bimodal, but a long gap follows long work
 *   phases       25 us, and after a quarter of COUNT 300 us, and again
 *   bursts       nine of 8 us, then one of 1 ms
 *   long         500 us
 *
 * Prints how late the wakeups were [ns]: median, 99 % and mean.
 */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static uint64_t state;

static double uniform(void)
{
	/* xorshift64*: the same numbers on every machine. */
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return ((state * 0x2545f4914f6cdd1dULL >> 11) + 0.5) / 9007199254740992.0;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void gap(const char *pattern, int i, int count, double *work, double *idle)
{
	double u = uniform();

	*work = 3000;
	if (!strcmp(pattern, "constant")) {
		*idle = 30000;
	} else if (!strcmp(pattern, "exponential")) {
		*idle = -log(u) * 60000;
	} else if (!strcmp(pattern, "bimodal")) {
		*idle = u < 0.7 ? 10000 : 400000;
	} else if (!strcmp(pattern, "rare")) {
		*idle = u < 0.9 ? 10000 : 400000;
	} else if (!strcmp(pattern, "told")) {
		*idle = u < 0.7 ? 10000 : 400000;
		*work = u < 0.7 ? 3000 : 40000;
	} else if (!strcmp(pattern, "phases")) {
		*idle = i / (count / 4) % 2 ? 300000 : 25000;
	} else if (!strcmp(pattern, "bursts")) {
		*idle = i % 10 == 9 ? 1000000 : 8000;
	} else if (!strcmp(pattern, "long")) {
		*idle = 500000;
	} else {
		exit(2);
	}
}

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int count, i;
	int64_t *late, sum = 0;
	cpu_set_t set;

	if (argc != 4)
		return 2;
	state = 0x9e3779b97f4a7c15ULL * (strtoull(argv[2], NULL, 10) + 1);
	count = atoi(argv[3]);
	late = malloc(sizeof(*late) * count);
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	if (!late || sched_setaffinity(0, sizeof(set), &set) ||
	    prctl(PR_SET_TIMERSLACK, 1))
		return 1;
	for (i = 0; i < count; i++) {
		double work, idle;
		int64_t until;
		struct timespec t;

		gap(argv[1], i, count, &work, &idle);
		for (until = now() + (int64_t)work; now() < until;)
			;
		until = now() + (int64_t)idle;
		t.tv_sec = until / 1000000000;
		t.tv_nsec = until % 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		late[i] = now() - until;
		sum += late[i];
	}
	qsort(late, count, sizeof(*late), by_value);
	printf("%lld %lld %lld\n", (long long)late[count / 2],
	       (long long)late[count - 1 - count / 100],
	       (long long)(sum / count));
	return 0;
}
