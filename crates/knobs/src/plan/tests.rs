use super::*;
use dwell_policy::Layer;
use dwell_replay::Figure;
use dwell_replay::advice::Interval;
use proptest::prelude::*;

/// A plan from the defaults of the guest layer to `wanted`.
pub(crate) fn guest_plan(wanted: &[(&str, i64)]) -> Plan {
    plan_of(Setting::defaults(Layer::Guest, Version::new(6, 18)), wanted, None)
}

pub(crate) fn plan_of(present: Setting, wanted: &[(&str, i64)], iothread: Option<IothreadTarget>) -> Plan {
    let mut recommended = present;
    for (name, value) in wanted {
        recommended.set(name, *value).unwrap();
    }
    let predicted = Priced {
        polling_ns_per_s: 1.5e6,
        halts_per_s: 250.25,
        polls: 10,
        polls_succeeded: 7,
        mean_added_latency_ns: 20_000.0,
        p99_added_latency_ns: 20_000,
        cost_ns_per_s: 6.5e6,
        ..Priced::default()
    };
    Plan {
        format: FORMAT,
        tool: "dwell 0.1.0".to_owned(),
        made_at_unix_s: 1_795_000_000,
        owner: present.owner(),
        version: present.version().to_string(),
        advice: "set guest_halt_poll_ns=50000: 12 % less cost".to_owned(),
        present_is_recorded: true,
        present: Values::from(&present),
        recommended: Values::from(&recommended),
        effect: Effect {
            present: predicted.clone(),
            recommended: predicted.clone(),
            optimum: Some(predicted),
            gain: Some(Gain {
                of: Figure::Cost,
                per_s: 1e6,
                share: Interval { low: 0.08, value: 0.12, high: 0.16 },
            }),
            speed: None,
        },
        conditions: Conditions {
            halt_cost_ns: 20_000,
            wakeup_latency_ns: 20_000.0,
            kernel: Some("6.18.44".to_owned()),
            qemu: None,
            cpu_model: Some("A \"quoted\" CPU".to_owned()),
            machine: None,
            goal: Goal::MaxCpu(0.02),
        },
        recording: RecordingFacts {
            file: "idle.parquet".to_owned(),
            bytes: Some(12_345),
            layer: present.owner(),
            span_ns: 10_000_000_000,
            judged_span_ns: 5_000_000_000,
            episodes: 20,
            idlers: vec!["cpu0".to_owned()],
            more_idlers: 0,
            quantiles: vec![Quantile { quantile: 0.5, idle_ns: 60_000 }],
        },
        writes: writes(&present, &recommended, iothread.as_ref()),
        iothread,
    }
}

fn refusal(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = guest_plan(&[("guest_halt_poll_ns", 50_000)]);
    change(&mut plan);
    Plan::from_toml(&plan.to_toml().unwrap()).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read() {
    let thread = IothreadTarget {
        socket: "/run/vm.qmp".into(),
        id: "io0".parse().unwrap(),
        domain: Some("vm".into()),
    };
    let qemu = Setting::defaults(Layer::Iothread, Version::new(7, 2));
    for plan in [
        guest_plan(&[("guest_halt_poll_ns", 50_000)]),
        guest_plan(&[("guest_halt_poll_ns", 20_000), ("guest_halt_poll_allow_shrink", 0)]),
        plan_of(qemu, &[("poll-max-ns", i64::MAX), ("poll-grow", 3)], Some(thread)),
    ] {
        let text = plan.to_toml().unwrap();
        assert_eq!(Plan::from_toml(&text).unwrap(), plan, "{text}");
        // The advice is a comment too, and may have a label of a recording.
        let labelled = Plan { advice: "class a\nb".to_owned(), ..plan };
        assert_eq!(Plan::from_toml(&labelled.to_toml().unwrap()).unwrap(), labelled);
    }
}

/// Its table had nothing but zeros.
#[test]
fn a_plan_from_causes_has_no_optimum() {
    let mut plan = guest_plan(&[("guest_halt_poll_ns", 50_000)]);
    plan.effect.optimum = None;
    let text = plan.to_toml().unwrap();
    assert!(!text.contains("optimum"), "{text}");
    assert_eq!(Plan::from_toml(&text).unwrap(), plan);
}

#[test]
fn a_plan_that_does_not_fit_together_is_refused_and_the_field_named() {
    assert!(refusal(|plan| plan.format = 1).contains("format 1, but this dwell reads only 2"));
    assert!(refusal(|plan| plan.version = "4.19".into()).contains("5.4 to 7.3"));
    assert!(refusal(|plan| plan.writes[0].to = 1 << 40).contains("number 1, guest_halt_poll_ns"));
    assert!(refusal(|plan| plan.writes[0].from = 7).contains("from = 7, but 200000 would be there"));
    assert!(refusal(|plan| plan.writes.clear()).contains("would be in force"));
    assert!(
        refusal(|plan| plan.writes[0].knob = "halt_poll_ns".into())
            .contains("not a parameter of the guest layer")
    );
    let elsewhere = "/sys/module/haltpoll/parameters/other";
    let error = refusal(|plan| plan.writes[0].place = elsewhere.parse().unwrap());
    assert!(error.contains("its place is /sys/module/haltpoll/parameters/guest_halt_poll_ns"), "{error}");
    let error = refusal(|plan| {
        plan.present.insert("halt_poll", 1);
    });
    assert!(error.starts_with("[present] halt_poll: no such parameter"), "{error}");
}

#[test]
fn a_plan_beyond_a_limit_is_refused() {
    type Change = Box<dyn FnOnce(&mut Plan)>;
    fn with_gain(plan: &mut Plan) -> &mut Gain {
        plan.effect.gain.as_mut().unwrap()
    }
    fn on_thread(socket: usize, id: usize, domain: usize) -> Change {
        let name = |length: usize| "x".repeat(length);
        let (socket, id, domain) = (name(socket), name(id).parse().unwrap(), Some(name(domain)));
        Box::new(|plan| plan.iothread = Some(IothreadTarget { socket, id, domain }))
    }
    const FINITE: &str = "a figure of [effect] or [recording] is not finite";
    const LONG: &str = "a name of [iothread] is longer than 400 characters";
    let cases: [(&str, Change); 20] = [
        (
            "it has 65 writes, more than the limit of 64",
            Box::new(|plan| {
                plan.writes = vec![plan.writes[0].clone(); 65];
            }),
        ),
        (
            "number 2, guest_halt_poll_ns: from = 200000",
            Box::new(|plan| {
                plan.writes = vec![plan.writes[0].clone(); 64];
            }),
        ),
        ("then_wait_ms = 10001 is more than 10000", Box::new(|plan| plan.writes[0].then_wait_ms = 10_001)),
        ("", Box::new(|plan| plan.writes[0].then_wait_ms = 10_000)),
        (FINITE, Box::new(|plan| plan.effect.present.polling_ns_per_s = f64::NAN)),
        (FINITE, Box::new(|plan| plan.effect.recommended.halts_per_s = f64::INFINITY)),
        (FINITE, Box::new(|plan| plan.effect.optimum.as_mut().unwrap().cost_ns_per_s = f64::NEG_INFINITY)),
        (FINITE, Box::new(|plan| with_gain(plan).per_s = f64::NAN)),
        (FINITE, Box::new(|plan| with_gain(plan).share.low = f64::NEG_INFINITY)),
        (FINITE, Box::new(|plan| with_gain(plan).share.value = f64::NAN)),
        (FINITE, Box::new(|plan| with_gain(plan).share.high = f64::INFINITY)),
        (
            FINITE,
            Box::new(|plan| {
                plan.effect.speed = Some(Interval { low: 1.0, value: 1.1, high: f64::INFINITY });
            }),
        ),
        (FINITE, Box::new(|plan| plan.recording.quantiles[0].quantile = f64::NAN)),
        (FINITE, Box::new(|plan| plan.conditions.wakeup_latency_ns = f64::INFINITY)),
        (FINITE, Box::new(|plan| plan.conditions.goal = Goal::MaxCpu(f64::NAN))),
        (FINITE, Box::new(|plan| plan.conditions.goal = Goal::MaxHaltsPerSecond(f64::INFINITY))),
        ("", on_thread(400, 255, 400)),
        (LONG, on_thread(401, 255, 400)),
        (LONG, on_thread(400, 255, 401)),
        // 400 characters are more bytes.
        (
            "",
            Box::new(|plan| {
                let id = "io0".parse().unwrap();
                plan.iothread = Some(IothreadTarget { socket: "ä".repeat(400), id, domain: None });
            }),
        ),
    ];
    for (number, (why, change)) in cases.into_iter().enumerate() {
        let mut plan = guest_plan(&[("guest_halt_poll_ns", 50_000)]);
        change(&mut plan);
        let told = Plan::from_toml(&plan.to_toml().unwrap()).err().map(|error| error.to_string());
        match told {
            None => assert_eq!(why, "", "case {number}"),
            Some(told) => assert!(!why.is_empty() && told.contains(why), "case {number}: {told}"),
        }
    }
}

#[test]
fn what_is_not_understood_is_refused_and_named() {
    let text = guest_plan(&[("guest_halt_poll_ns", 50_000)]).to_toml().unwrap();
    let error = Plan::from_toml(&format!("colour = 1\n{text}")).unwrap_err().to_string();
    assert!(error.contains("colour"), "{error}");
    let error = Plan::from_toml(&text.replace("/sys/module", "/etc")).unwrap_err().to_string();
    assert!(error.contains("not a place that dwell writes to"), "{error}");
    assert!(Plan::from_toml("").unwrap_err().to_string().contains("format"));
}

#[test]
fn limits_are_let_down_before_shrinking_is_forbidden() {
    let plan = guest_plan(&[("guest_halt_poll_ns", 20_000), ("guest_halt_poll_allow_shrink", 0)]);
    let steps: Vec<(&str, i64, u64)> = plan
        .writes
        .iter()
        .map(|w| (w.knob.trim_start_matches("guest_halt_poll_"), w.to, w.then_wait_ms))
        .collect();
    let expected =
        [("shrink", 0, 0), ("ns", 1_000, 1_000), ("ns", 20_000, 0), ("shrink", 2, 0), ("allow_shrink", 0, 0)];
    assert_eq!(steps, expected);
}

proptest! {
    /// Whatever the two settings: the writes lead from one to the other, never write what is there, and wait only where
    /// shrinking is forbidden.
    #[test]
    fn writes_lead_from_one_setting_to_the_other(
        a in prop::collection::vec(0i64..4, 5), b in prop::collection::vec(0i64..4, 5)
    ) {
        let setting = |values: &[i64]| {
            let mut setting = Setting::defaults(Layer::Guest, Version::new(6, 18));
            for (param, value) in dwell_policy::param::GUEST.iter().zip(values) {
                setting.set(param.name, (*value).min(param.max)).unwrap();
            }
            setting
        };
        let (mut now, wanted) = (setting(&a), setting(&b));
        let writes = writes(&now, &wanted, None);
        prop_assert_eq!(writes.iter().any(|w| w.then_wait_ms > 0), steps::is_shrink_trap(&now, &wanted));
        for write in writes {
            prop_assert_eq!(now.get(&write.knob), Some(write.from));
            prop_assert_ne!(write.from, write.to);
            now.set(&write.knob, write.to).unwrap();
        }
        prop_assert_eq!(now, wanted);
    }
}

#[test]
fn a_recording_is_of_this_machine_of_another_or_it_is_not_known() {
    use dwell_testing::machine::Fake;
    let id = "0123456789abcdef0123456789abcdef\n";
    let machine = Fake::quiet("6.18.44").file("/etc/machine-id", id);
    let mut metadata = Metadata::new(Layer::Guest);
    assert_eq!(RecordedOn::of(&metadata, &machine), RecordedOn::Unknown);
    metadata.machine = identity::machine_id(&machine);
    metadata.kernel = Some("6.6.1".to_owned());
    assert_eq!(RecordedOn::of(&metadata, &machine), RecordedOn::ThisMachine);
    metadata.machine = Some("f".repeat(32));
    assert!(matches!(RecordedOn::of(&metadata, &machine), RecordedOn::OtherMachine { .. }));
    // Recordings before this field, and imported ones, have a kernel release at most.
    metadata.machine = None;
    let RecordedOn::OtherMachine { why } = RecordedOn::of(&metadata, &machine) else {
        panic!("it is another")
    };
    assert!(why.contains("Linux 6.6.1, but this is 6.18.44"), "{why}");
}
