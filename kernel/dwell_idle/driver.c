// SPDX-License-Identifier: GPL-2.0
/*
 * dwell_idle: an idle driver for guests of KVM that learns how long to poll
 * before it halts.
 *
 * It has two states. The first is the kernel's polling state; a governor takes
 * it where the latency limit forbids to halt. The second polls for the window
 * that the policy gives (policy.c) and halts when the window has run out. The
 * window is chosen in the second state and not by a governor, for modules
 * cannot register one. The governor in force still decides about the tick.
 *
 * While the driver is in force, KVM does not poll for the CPUs that do it
 * themselves (poll control).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/cpuidle.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/kvm_para.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/pm_qos.h>
#include <linux/reboot.h>
#include <linux/sched/clock.h>
#include <linux/sched/idle.h>
#include <linux/seq_file.h>
#include <linux/sort.h>
#include <asm/cpuidle_haltpoll.h>
#include <asm/processor.h>

#include "compat.h"
#include "policy.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* The state that polls and halts. */
#define DWELL_STATE		1

/* Where the halt cost can be neither given nor measured. */
#define DEFAULT_HALT_COST_NS	20000
#define LEAST_HALT_COST_NS	1000
#define DEFAULT_MAX_WINDOW_NS	200000

/* Good wakeups by a timer that are measured, and the tries that it may take. */
#define SAMPLES			31
#define TRIES			200
#define SAMPLE_NS		100000
#define SAMPLE_WINDOW_NS	2000000
#define NOT_MEASURING		U64_MAX

/* There is no episode to learn from. */
#define NOTHING_UNLEARNED	U64_MAX

/* An episode whose window has run out, and that goes on with a halt. */
struct unfinished {
	bool is;
	bool learns;
	u64 begin;
	u64 left;
	u64 polled;
	/* For how long others had the CPU during the poll. */
	u64 lost;
	u64 window;
	u64 busy;
	/* Of the idle task then: no task has run as long as it is the same. */
	unsigned long switches;
};

struct idler {
	struct dwell_policy policy;
	struct unfinished unfinished;
	/* Of the parameters that the policy has. */
	u32 generation;
	/* Whether this CPU may poll. */
	bool polls;
	/* When the last episode ended. */
	u64 ended;
	/* How long it was, if the policy has still to learn from it. */
	u64 unlearned;
	u64 unlearned_lost;
	/* The time stolen, when a gap was last put down to it. */
	u64 stolen;
	/* Has the latency limit of this CPU. */
	struct device *device;
	/* The window while wakeups of this CPU are measured. */
	u64 measuring;

	/* Counters. */
	u64 episodes;
	u64 polls_successful;
	u64 polls_failed;
	u64 halts;
	u64 poll_success_ns;
	u64 poll_fail_ns;
	u64 preemptions;
	u64 lost_ns;
	u64 measured;
};

static struct idler __percpu *idlers;
static struct cpuidle_device __percpu *devices;
static struct dentry *debug;
static enum cpuhp_state hotplug_state;

/* Whether KVM can be told not to poll. */
static bool host_has_poll_control;
/* From the registration of the driver on. */
static bool in_force;
/* Counts the changes of parameters. */
static u32 generation = 1;

static bool force;
module_param(force, bool, 0444);
MODULE_PARM_DESC(force, "Load also where the hypervisor is not KVM (default N)");

static bool poll_control = true;
module_param(poll_control, bool, 0444);
MODULE_PARM_DESC(poll_control, "Switch KVM's own polling off for the CPUs in cpus, whatever the policy (default Y)");

static unsigned int halt_cost_ns;
static unsigned int wake_latency_ns;
static unsigned int max_window_ns = DEFAULT_MAX_WINDOW_NS;
static enum dwell_rule rule = DWELL_LEADER;
static struct cpumask cpus;

static const char * const rule_names[DWELL_RULES] = {
	[DWELL_LEADER] = "leader",
	[DWELL_SAVINGS] = "savings",
	[DWELL_FIXED] = "fixed",
	[DWELL_NEVER] = "never",
};

/* Every CPU begins anew with the parameters as they are now. */
static void renew(void)
{
	/* After the parameters: pairs with begin_anew(). */
	smp_store_release(&generation, generation + 1);
}

static void begin_anew(struct idler *idler, unsigned int cpu)
{
	/* Before the parameters: pairs with renew(). */
	idler->generation = smp_load_acquire(&generation);
	idler->polls = cpumask_test_cpu(cpu, &cpus);
	idler->unlearned = NOTHING_UNLEARNED;
	idler->stolen = kcpustat_this_cpu->cpustat[CPUTIME_STEAL];
	dwell_policy_init(&idler->policy, READ_ONCE(rule),
			  READ_ONCE(halt_cost_ns), READ_ONCE(wake_latency_ns),
			  READ_ONCE(max_window_ns));
}

/* How an episode, or a part of it, ended. */
enum ended {
	POLLED,
	HALTED,
	/* The window ran out, and the idle loop has to look for timers first. */
	TO_HALT,
};

/* What was seen while polling. */
struct poll {
	/* When it last looked, since the episode began. */
	u64 spent;
	/* Between the last two looks. */
	u64 gap;
	bool interrupted;
};

/* 0 where the clock went back, as it may after a migration. */
static __always_inline u64 between(u64 begin, u64 end)
{
	return end > begin ? end - begin : 0;
}

/*
 * Polls for @window, then halts if it @may_halt. With the polling flag set,
 * another CPU that wakes a task here only sets need_resched and sends no
 * interrupt. *@polled is how long it polled.
 *
 * While it polls interrupts are open, and what they arm on this CPU without
 * waking a task, such as a timer or a callback of RCU, is looked at by the idle
 * loop before it chooses when the next tick is. That was before the poll: so
 * where an interrupt came there is no halt before the loop has gone round.
 */
static noinstr enum ended poll_then_halt(u64 begin, u64 window, bool may_halt,
					 struct poll *poll)
{
	u64 spent = 0, looked = 0;
	bool interrupted = false;

	if (window) {
		u64 before = dwell_interrupts();

		raw_local_irq_enable();
		if (!current_set_polling_and_test()) {
			while (!need_resched()) {
				looked = spent;
				spent = sched_clock() - begin;
				if (spent > window)
					break;
				cpu_relax();
			}
		}
		raw_local_irq_disable();
		/* From here on a waker sends an interrupt. */
		current_clr_polling();
		interrupted = dwell_interrupts() != before;
	}
	/* A clock that went back to before @begin has ended the poll. */
	poll->spent = (s64)spent < 0 ? looked : spent;
	poll->gap = between(looked, poll->spent);
	poll->interrupted = interrupted;
	if (need_resched() || !may_halt)
		return POLLED;
	if (interrupted)
		return TO_HALT;
	dwell_halt();
	return HALTED;
}

/*
 * Whether the latency limit of this CPU allows a halt. The governor looks after
 * the limit 0 of all CPUs and takes the kernel's polling state; it cannot be
 * asked for another limit of all CPUs.
 */
static bool may_halt(const struct idler *idler)
{
	const struct dev_pm_qos *qos = READ_ONCE(idler->device->power.qos);
	u64 limit_us = PM_QOS_RESUME_LATENCY_NO_CONSTRAINT;

	if (!IS_ERR_OR_NULL(qos))
		limit_us = READ_ONCE(qos->resume_latency.target_value);
	return limit_us * NSEC_PER_USEC >= idler->policy.wake_latency;
}

static void count(struct idler *idler, bool halted, u64 window, u64 polled,
		  u64 idle)
{
	idler->episodes++;
	idler->halts += halted;
	if (!window)
		return;
	if (halted) {
		idler->polls_failed++;
		idler->poll_fail_ns += polled;
	} else {
		idler->polls_successful++;
		idler->poll_success_ns += idle;
	}
}

/*
 * Chooses the window of the episode that begins now. What the last one has
 * taught is learned before, and not at its end, where the task that woke up
 * would wait for it.
 */
static u64 choose_window(struct idler *idler, u64 busy)
{
	if (idler->unlearned != NOTHING_UNLEARNED)
		dwell_policy_observe(&idler->policy, idler->unlearned,
				     idler->unlearned_lost);
	idler->unlearned = NOTHING_UNLEARNED;
	return dwell_policy_window(&idler->policy, busy);
}

/*
 * For how long others had the CPU during the poll: a gap between two looks, or
 * between the last one and the end of a poll that saw its event, is a
 * preemption where it is too long for a look. Interrupts of this CPU that came
 * during the poll may have taken the time as well; then the hypervisor must
 * have reported as much stolen since the last such gap.
 */
static u64 lost_to_others(struct idler *idler, const struct poll *poll, u64 left)
{
	u64 gap = max(poll->gap, between(poll->spent, left));
	u64 stolen;

	if (gap <= dwell_policy_longest_gap(&idler->policy))
		return 0;
	if (poll->interrupted) {
		stolen = kcpustat_this_cpu->cpustat[CPUTIME_STEAL];
		if (stolen - idler->stolen < gap)
			return 0;
		idler->stolen = stolen;
	}
	idler->preemptions++;
	idler->lost_ns += gap;
	return gap;
}

/* Context switches of the idle task, which runs here. */
static unsigned long switches(void)
{
	return current->nvcsw + current->nivcsw;
}

/*
 * An episode has ended, of which @idle was idle. What a poll has seen came
 * within its window.
 */
static void finish(struct idler *idler, const struct unfinished *episode,
		   u64 end, bool halted)
{
	u64 idle = between(episode->begin, end);

	if (!halted)
		idle = min(idle, episode->window);
	if (episode->learns) {
		idler->unlearned = idle;
		idler->unlearned_lost = episode->lost;
	}
	/* Polls for a latency limit are not the policy's. */
	count(idler, halted, episode->learns ? episode->window : 0,
	      episode->polled, idle);
	trace_dwell_idle_episode(idle, episode->window, episode->busy, halted);
}

/*
 * Goes on with the episode of the last entry, whose window has run out: halts,
 * on the choice of the tick that the idle loop has made since.
 */
static void go_on(struct idler *idler)
{
	struct poll none;
	enum ended ended;

	dwell_rcu_idle_enter();
	ended = poll_then_halt(0, 0, true, &none);
	dwell_rcu_idle_exit();
	idler->ended = sched_clock();
	finish(idler, &idler->unfinished, idler->ended, ended == HALTED);
	idler->measured += !idler->unfinished.learns &&
			   READ_ONCE(idler->measuring) != NOT_MEASURING;
}

static int enter(struct cpuidle_device *dev, struct cpuidle_driver *drv,
		 int index)
{
	struct idler *idler = this_cpu_ptr(idlers);
	struct unfinished episode = {};
	u64 measured_window = READ_ONCE(idler->measuring);
	struct poll poll;
	bool halts;
	enum ended ended;

	if (idler->unfinished.is) {
		idler->unfinished.is = false;
		if (idler->unfinished.switches == switches()) {
			go_on(idler);
			return index;
		}
		/* A task ran instead: it came right after the window. */
		finish(idler, &idler->unfinished, idler->unfinished.left, false);
	}

	if (unlikely(idler->generation != READ_ONCE(generation)))
		begin_anew(idler, dev->cpu);

	halts = measured_window != NOT_MEASURING || may_halt(idler);
	/* An injected idle time is to be slept through. */
	episode.learns = idler->polls && measured_window == NOT_MEASURING &&
			 halts && !dev->forced_idle_latency_limit_ns;

	episode.begin = sched_clock();
	episode.busy = between(idler->ended, episode.begin);
	if (episode.learns)
		episode.window = choose_window(idler, episode.busy);
	else if (measured_window != NOT_MEASURING)
		episode.window = measured_window;
	else if (!halts)
		/* Then the governor is asked again. */
		episode.window = TICK_NSEC;

	dwell_rcu_idle_enter();
	ended = poll_then_halt(episode.begin, episode.window, halts, &poll);
	dwell_rcu_idle_exit();

	episode.left = sched_clock();
	idler->ended = episode.left;
	episode.polled = poll.spent;
	if (episode.learns && episode.window)
		episode.lost = lost_to_others(idler, &poll, ended == POLLED ?
					      between(episode.begin, episode.left) : 0);
	if (ended == TO_HALT) {
		episode.is = true;
		episode.switches = switches();
		idler->unfinished = episode;
		return index;
	}
	finish(idler, &episode, episode.left, ended == HALTED);
	idler->measured += !episode.learns && measured_window != NOT_MEASURING;
	return index;
}

/*
 * No owner: each device would hold the module, so that it could not be removed.
 * It is safe without. Devices are unregistered in the hotplug callbacks, each by
 * a thread on its own CPU, which then is not in enter() and does not get there
 * again.
 */
static struct cpuidle_driver driver = {
	.name = KBUILD_MODNAME,
};

static void host_polls(unsigned int cpu, bool on)
{
	if (!poll_control || !host_has_poll_control)
		return;
	if (on)
		arch_haltpoll_disable(cpu);
	else
		arch_haltpoll_enable(cpu);
}

static void host_polls_for_all(bool ours)
{
	unsigned int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu)
		host_polls(cpu, !(ours && cpumask_test_cpu(cpu, &cpus)));
	cpus_read_unlock();
}

static int online(unsigned int cpu)
{
	struct cpuidle_device *dev = per_cpu_ptr(devices, cpu);
	struct idler *idler = per_cpu_ptr(idlers, cpu);
	int err;

	idler->generation = 0;
	idler->measuring = NOT_MEASURING;
	idler->ended = 0;
	idler->unfinished.is = false;
	idler->device = get_cpu_device(cpu);
	if (!idler->device)
		return -ENODEV;
	dev->cpu = cpu;
	err = cpuidle_register_device(dev);
	if (err) {
		pr_err("cannot register cpu%u: error %d\n", cpu, err);
		return err;
	}
	host_polls(cpu, !cpumask_test_cpu(cpu, &cpus));
	return 0;
}

static int offline(unsigned int cpu)
{
	host_polls(cpu, true);
	cpuidle_unregister_device(per_cpu_ptr(devices, cpu));
	return 0;
}

/* The next kernel, after kexec, does not know that KVM was told not to poll. */
static int before_reboot(struct notifier_block *block, unsigned long event,
			 void *data)
{
	host_polls_for_all(false);
	return NOTIFY_DONE;
}

static struct notifier_block reboot_notifier = {
	.notifier_call = before_reboot,
};

static int by_value(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

/*
 * Sleeps until a timer. *@late is how late it woke; whether that counts: it
 * does if this CPU idled in the meantime.
 */
static bool sample_wakeup(struct idler *idler, u64 *late)
{
	u64 before = READ_ONCE(idler->measured);
	ktime_t expires = ktime_add_ns(ktime_get(), SAMPLE_NS);
	ktime_t now;

	set_current_state(TASK_UNINTERRUPTIBLE);
	schedule_hrtimeout(&expires, HRTIMER_MODE_ABS);
	now = ktime_get();
	*late = ktime_after(now, expires) ? ktime_to_ns(ktime_sub(now, expires)) : 0;
	return READ_ONCE(idler->measured) != before;
}

/* The median lateness of a wakeup under @window; false if it is not known. */
static bool measure_wakeup(struct idler *idler, u64 window, u64 *median)
{
	u64 samples[SAMPLES];
	unsigned int good = 0, tries;

	WRITE_ONCE(idler->measuring, window);
	for (tries = 0; tries < TRIES && good < SAMPLES; tries++)
		good += sample_wakeup(idler, &samples[good]);
	WRITE_ONCE(idler->measuring, NOT_MEASURING);
	if (good < SAMPLES)
		return false;
	sort(samples, SAMPLES, sizeof(samples[0]), by_value, NULL);
	*median = samples[SAMPLES / 2];
	return true;
}

/*
 * How much later this CPU runs after a halt than after a poll, at least 1 us;
 * 0 if it is too busy. Its caller stays on this CPU.
 */
static long measure_halt_here(void *unused)
{
	struct idler *idler = per_cpu_ptr(idlers, raw_smp_processor_id());
	u64 polled, halted, cost;

	if (!measure_wakeup(idler, SAMPLE_WINDOW_NS, &polled) ||
	    !measure_wakeup(idler, 0, &halted))
		return 0;
	cost = halted > polled ? halted - polled : 0;
	return clamp_t(u64, cost, LEAST_HALT_COST_NS, U32_MAX);
}

/* Of a CPU that may poll: on others KVM polls, which hides what a halt costs. */
static unsigned int measure_halt(void)
{
	unsigned int cpu = cpumask_any_and(&cpus, cpu_online_mask);
	long cost = 0;

	if (cpu < nr_cpu_ids)
		cost = work_on_cpu_safe(cpu, measure_halt_here, NULL);
	if (cost > 0)
		return cost;
	pr_warn("no CPU that polls is idle enough to measure a halt; taking %u ns\n",
		DEFAULT_HALT_COST_NS);
	return DEFAULT_HALT_COST_NS;
}

/* Measures what was not given, and lets every CPU begin anew. */
static void set_costs(void)
{
	if (!halt_cost_ns || !wake_latency_ns) {
		unsigned int measured = measure_halt();

		if (!halt_cost_ns)
			halt_cost_ns = measured;
		if (!wake_latency_ns)
			wake_latency_ns = measured;
	}
	renew();
}

static int set_ns(const char *text, const struct kernel_param *param)
{
	int err = param_set_uint(text, param);

	if (!err && in_force)
		set_costs();
	return err;
}

static const struct kernel_param_ops ns_ops = {
	.set = set_ns,
	.get = param_get_uint,
};

module_param_cb(halt_cost_ns, &ns_ops, &halt_cost_ns, 0644);
MODULE_PARM_DESC(halt_cost_ns, "What a halt and the wakeup from it are worth [ns]; 0: measure it now (default 0)");
module_param_cb(wake_latency_ns, &ns_ops, &wake_latency_ns, 0644);
MODULE_PARM_DESC(wake_latency_ns, "How much later a halted CPU wakes up [ns]; 0: measure it now (default 0)");
module_param_cb(max_window_ns, &ns_ops, &max_window_ns, 0644);
MODULE_PARM_DESC(max_window_ns, "The longest poll [ns]; 0: never poll (default 200000)");

static int set_policy(const char *text, const struct kernel_param *param)
{
	int found = sysfs_match_string(rule_names, text);

	if (found < 0)
		return found;
	WRITE_ONCE(rule, found);
	renew();
	return 0;
}

static int get_policy(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%s\n", rule_names[rule]);
}

static const struct kernel_param_ops policy_ops = {
	.set = set_policy,
	.get = get_policy,
};

module_param_cb(policy, &policy_ops, NULL, 0644);
MODULE_PARM_DESC(policy, "leader, savings, fixed (always max_window_ns) or never (default leader)");

static bool cpus_given;

static int set_cpus(const char *text, const struct kernel_param *param)
{
	cpumask_var_t wanted;
	int err;

	if (!zalloc_cpumask_var(&wanted, GFP_KERNEL))
		return -ENOMEM;
	err = cpulist_parse(text, wanted);
	if (!err) {
		cpumask_copy(&cpus, wanted);
		cpus_given = true;
		renew();
		if (in_force)
			host_polls_for_all(true);
	}
	free_cpumask_var(wanted);
	return err;
}

static int get_cpus(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%*pbl\n", cpumask_pr_args(&cpus));
}

static const struct kernel_param_ops cpus_ops = {
	.set = set_cpus,
	.get = get_cpus,
};

module_param_cb(cpus, &cpus_ops, NULL, 0644);
MODULE_PARM_DESC(cpus, "The CPUs that poll, as a list such as 0-3,6; the others halt at once (default all)");

static int cpus_show(struct seq_file *file, void *unused)
{
	unsigned int cpu;

	seq_puts(file, "cpu window_ns episodes polls_successful polls_failed halts poll_success_ns poll_fail_ns preemptions lost_ns\n");
	for_each_possible_cpu(cpu) {
		const struct idler *idler = per_cpu_ptr(idlers, cpu);

		seq_printf(file, "%u %llu %llu %llu %llu %llu %llu %llu %llu %llu\n",
			   cpu, idler->policy.window, idler->episodes,
			   idler->polls_successful, idler->polls_failed,
			   idler->halts, idler->poll_success_ns,
			   idler->poll_fail_ns, idler->preemptions,
			   idler->lost_ns);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(cpus);

/* Why it cannot be loaded here, 0 if it can. */
static int check_machine(void)
{
	const struct cpuidle_driver *other = cpuidle_get_driver();

	if (boot_option_idle_override != IDLE_NO_OVERRIDE) {
		pr_err("the kernel was booted with idle=; boot without it\n");
		return -ENODEV;
	}
	if (other) {
		pr_err("idle driver %s is in force, and there can be only one; unload it or boot without it\n",
		       other->name);
		return -EBUSY;
	}
	if (!kvm_para_available() && !force) {
		pr_err("the hypervisor is not KVM; load with force=1 to use it all the same\n");
		return -ENODEV;
	}
	return 0;
}

static bool find_poll_control(void)
{
	u32 base;

	if (!kvm_para_available())
		return false;
	base = hypervisor_cpuid_base("KVMKVMKVM\0\0\0", 0);
	return base && (cpuid_eax(base | KVM_CPUID_FEATURES) &
			BIT(KVM_FEATURE_POLL_CONTROL));
}

static void set_up_driver(void)
{
	struct cpuidle_state *state = &driver.states[DWELL_STATE];

	cpuidle_poll_state_init(&driver);
	strscpy(state->name, "DWELL", sizeof(state->name));
	strscpy(state->desc, "poll as learned, then halt", sizeof(state->desc));
	state->enter = enter;
	state->flags = CPUIDLE_FLAG_RCU_IDLE;
	/*
	 * The least that is not nothing, so that the polling state is left for
	 * the latency limit 0: menu takes it also where it expects an idle time
	 * below either of these.
	 */
	state->exit_latency_ns = 1;
	state->target_residency_ns = 1;
	driver.state_count = DWELL_STATE + 1;
}

static int __init dwell_idle_init(void)
{
	int err = check_machine();

	if (err)
		return err;
	if (!cpus_given)
		cpumask_copy(&cpus, cpu_possible_mask);
	host_has_poll_control = find_poll_control();

	idlers = alloc_percpu(struct idler);
	devices = alloc_percpu(struct cpuidle_device);
	err = -ENOMEM;
	if (!idlers || !devices)
		goto free;

	set_up_driver();
	err = cpuidle_register_driver(&driver);
	if (err) {
		pr_err("cannot register the driver: error %d\n", err);
		goto free;
	}
	/* The parameters are in sysfs already. */
	kernel_param_lock(THIS_MODULE);
	err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "cpuidle/dwell_idle:online",
				online, offline);
	if (err >= 0) {
		hotplug_state = err;
		set_costs();
		in_force = true;
	}
	kernel_param_unlock(THIS_MODULE);
	if (err < 0)
		goto unregister;

	register_reboot_notifier(&reboot_notifier);
	debug = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("cpus", 0444, debug, NULL, &cpus_fops);
	pr_info("policy %s, halt cost %u ns, wakeup latency %u ns, windows up to %u ns; KVM %s\n",
		rule_names[rule], halt_cost_ns, wake_latency_ns, max_window_ns,
		poll_control && host_has_poll_control ?
			"does not poll" : "is not told not to poll");
	return 0;

unregister:
	cpuidle_unregister_driver(&driver);
free:
	free_percpu(devices);
	free_percpu(idlers);
	return err;
}

static void __exit dwell_idle_exit(void)
{
	kernel_param_lock(THIS_MODULE);
	in_force = false;
	kernel_param_unlock(THIS_MODULE);
	debugfs_remove(debug);
	unregister_reboot_notifier(&reboot_notifier);
	cpuhp_remove_state(hotplug_state);
	cpuidle_unregister_driver(&driver);
	free_percpu(devices);
	free_percpu(idlers);
}

module_init(dwell_idle_init);
module_exit(dwell_idle_exit);
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The dwell developers");
MODULE_DESCRIPTION("Idle driver for guests that learns how long to poll before it halts");
MODULE_VERSION("0.1.0");
