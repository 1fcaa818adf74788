use super::*;
use dwell_recording::accounting::Outcome;

pub(crate) fn seen(idler: &str, idle_ns: u64, window_ns: Option<u64>) -> Seen {
    Seen { idler: idler.into(), window_ns, outcome: Outcome::of(idle_ns, window_ns, None, None, 0) }
}

fn batch(episodes: Vec<Seen>) -> Batch {
    Batch { span: Duration::from_secs(1), episodes, ..Batch::default() }
}

/// Two vCPUs that poll and one thread of which no window is known.
pub(crate) fn example() -> State {
    let mut state = State::new("host", Sort::Wakeups, "");
    let mut episodes = vec![];
    episodes.extend((0..1_000).map(|_| seen("web/0", 50_000, Some(200_000))));
    episodes.extend((0..100).map(|_| seen("web/1", 1_000_000, Some(10_000))));
    episodes.extend((0..10).map(|_| seen("redis", 8, None)));
    state.take(Batch { lost: 3, ..batch(episodes) });
    state
}

fn names(state: &State) -> Vec<String> {
    state.rows().iter().map(|row| row.idler.to_string()).collect()
}

#[test]
fn rows_tell_rates_quantiles_and_polling() {
    let state = example();
    let rows = state.rows();
    assert_eq!(names(&state), ["web/0", "web/1", "redis"]);
    assert_eq!((rows[0].wakeups_per_s, rows[0].success), (1_000.0, Some(1.0)));
    assert!((rows[0].polling.unwrap() - 0.05).abs() < 1e-9);
    assert_eq!((rows[0].p50_ns, rows[0].window_ns), (49_152, Some(200_000)));
    assert_eq!((rows[1].success, rows[1].polling), (Some(0.0), Some(0.001)));
    assert_eq!((rows[2].p99_ns, rows[2].success, rows[2].polling), (8, None, None));
    assert_eq!(state.octaves("web/0")[16], 1_000);
}

#[test]
fn what_is_older_than_ten_seconds_is_forgotten() {
    let mut state = example();
    for _ in 0..10 {
        state.take(batch(vec![seen("web/1", 100, None)]));
    }
    assert_eq!((names(&state), state.span()), (vec!["web/1".to_owned()], Duration::from_secs(10)));
    assert!((state.rows()[0].wakeups_per_s - 1.0).abs() < 1e-9);
    assert_eq!(state.lost, 3);
}

#[test]
fn selection_stays_with_its_idler_when_the_order_changes() {
    let mut state = example();
    state.apply(Action::Down);
    assert_eq!(state.selected(&state.rows()), Some(1));
    state.apply(Action::Reverse);
    assert_eq!(names(&state), ["redis", "web/1", "web/0"]);
    assert_eq!(state.selected(&state.rows()), Some(1));
    state.apply(Action::Last);
    state.apply(Action::Down);
    assert_eq!(state.selected(&state.rows()), Some(2));
    state.apply(Action::PreviousColumn);
    assert_eq!(state.sort, Sort::Name);
}

#[test]
fn filter_is_typed_kept_and_abandoned() {
    let mut state = example();
    state.apply(Action::Filter);
    for letter in "web".chars() {
        state.apply(Action::Letter(letter));
    }
    assert!(state.is_editing() && names(&state).len() == 2);
    state.apply(Action::Accept);
    state.apply(Action::Filter);
    state.apply(Action::Letter('x'));
    assert_eq!(names(&state), Vec::<String>::new());
    assert_eq!(state.selected(&state.rows()), None);
    state.apply(Action::Down);
    state.apply(Action::Abandon);
    assert_eq!((state.filter.as_str(), names(&state).len()), ("web", 2));
}

#[test]
fn pause_passes_over_episodes_but_not_losses() {
    let mut state = example();
    state.apply(Action::Pause);
    state.take(Batch { lost: 4, ..batch(vec![seen("new", 1, None)]) });
    assert_eq!((names(&state).len(), state.lost), (3, 7));
}

#[test]
fn counts_are_at_least_where_losses_are_known_or_unknowable() {
    let mut state = State::new("host", Sort::Wakeups, "");
    state.take(batch(vec![seen("a", 1, None)]));
    assert_eq!((state.at_least(), state.losses()), ("", None));
    state.take(Batch { losses_unknown: true, ..Batch::default() });
    assert_eq!(
        (state.at_least(), &*state.losses().unwrap()),
        ("at least ", "losses not counted by this kernel")
    );
    // It stays so, and is a matter of the kernel.
    state.apply(Action::Clear);
    state.take(Batch::default());
    assert_eq!(state.at_least(), "at least ");
    assert_eq!(example().losses().unwrap(), "at least 3 events lost");
    let mut example = example();
    example.apply(Action::Clear);
    assert_eq!((example.at_least(), example.losses()), ("", None));
}
