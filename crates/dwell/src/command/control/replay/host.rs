//! Several recordings as the VMs of one host.

use super::{Given, Vm, show};
use crate::check;
use crate::failure::Outcome;
use crate::model::{self, ModelArgs};
use crate::output::Format;
use anyhow::{Context, bail, ensure};
use dwell_control::daemon::tenants::{self, By};
use dwell_control::{Observation, Tenant};
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Memory, Source};
use dwell_report::duration;
use std::path::PathBuf;

/// The most episodes of several recordings, all of which are in memory.
const MOST_EPISODES: f64 = 20e6;

/// The recordings at the same time, each as a VM of one host, which has one setting.
pub(super) fn as_one_host(
    files: &[PathBuf],
    span: Option<Nanos>,
    listed: &[tenants::Vm],
    args: &ModelArgs,
    observe: Observation,
    format: Format,
) -> Outcome {
    let mut sources = vec![];
    let (mut vms, mut notes) = (vec![], vec![]);
    let name_of = |file: &PathBuf| file.file_stem().map(|name| name.to_string_lossy().into_owned());
    let is_of = |vm: &tenants::Vm, file: &PathBuf| matches!(&vm.by, By::Name(name) if name_of(file).as_ref() == Some(name));
    for vm in listed {
        let By::Name(name) = &vm.by else { continue };
        ensure!(
            files.iter().any(|file| is_of(vm, file)),
            "--vm {name}: no recording has this name; give the name of a file without its directory and its end"
        );
    }
    let mut first: Option<Given> = None;
    for file in files {
        let name = file.display().to_string();
        let reader = model::open(file)?;
        let given = Given::of(&reader, args, observe).with_context(|| name.clone())?;
        ensure!(
            given.layer == Layer::Host,
            "several recordings are controlled as VMs of one host: give --layer host ({name} is of the {} layer)",
            given.layer.name()
        );
        if let Some(first) = &first {
            let same =
                (given.model.version, given.model.halt_cost) == (first.model.version, first.model.halt_cost);
            ensure!(
                same,
                "{name} is of another kernel or halt cost than the first recording: one host has one; give --kernel and --halt-cost"
            );
            ensure!(
                given.originals == first.originals,
                "{name} was recorded under another setting than the first recording: one host has one"
            );
        }
        let (source, self_check) = check::check(given.model.source(reader)).with_context(|| name.clone())?;
        first.get_or_insert(given);
        notes.extend(self_check.note().map(|note| format!("{name}: {note}")));
        let span_ns = source.visit(0..u64::MAX, &mut |_| ())?.ns();
        ensure!(span_ns > 0, "{name}: there are no episodes; leave it out");
        let Tenant { weight, most_loss } =
            listed.iter().find(|vm| is_of(vm, file)).map_or_else(Tenant::default, |vm| vm.tenant);
        let idlers = source.idlers();
        vms.push(Vm {
            file: name,
            span_ns,
            weight,
            most_loss,
            idlers,
            controlled_ns: 0,
            originals_ns: 0,
            vetoes: 0,
        });
        sources.push(source);
    }
    let Some(given) = first else { bail!("--replay needs a recording") };
    let mut spans: Vec<u64> = vms.iter().map(|vm| vm.span_ns).collect();
    spans.sort_unstable();
    let span_ns = span.map_or(spans[spans.len() / 2], Nanos::get);
    ensure!(span_ns > 0, "--duration: 0 is no time; give some seconds");
    // Of each millisecond that a recording has, as many episodes as it has.
    let episodes: f64 = sources
        .iter()
        .zip(&vms)
        .map(|(source, vm)| source.episodes() as f64 * span_ns as f64 / vm.span_ns as f64)
        .sum();
    ensure!(
        episodes <= MOST_EPISODES,
        "these are {episodes:.0} episodes, more than {MOST_EPISODES}; give a shorter --duration"
    );
    notes.push(format!(
        "all begin at the same time; those that are shorter than {} are repeated, those that are longer are cut; --duration sets that time",
        duration(span_ns as f64)
    ));
    notes.extend(given.note());
    let all: Vec<&dyn Source> = sources.iter().map(|source| source as &dyn Source).collect();
    let source = Memory::together(&all, span_ns)?;
    show(&source, &given, None, vms, notes, observe, format)
}
