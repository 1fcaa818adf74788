//! The importers, each with its options.

use super::Args;
use crate::failure::Outcome;
use crate::settings;
use anyhow::{Context, anyhow, bail};
use dwell_policy::Layer;
use dwell_policy::iothread::{Params, Revision};
use dwell_policy::param::{Setting, index_of};
use dwell_recording::{IdleIncludes, Metadata, Reader};
use dwell_replay::check::setting_of;
use dwell_report::count;
use dwell_trace::import::csv::usual_idler;
use dwell_trace::import::perf::PerfOptions;
use dwell_trace::import::qemu::{QemuOptions, Sleeps};
use dwell_trace::import::{self, ImportSummary, Input};

/// A log of which more decisions contradict the rule was made under other parameters.
const MOST_CONTRADICTED: f64 = 0.05;

impl Args {
    pub(super) fn table(self, input: Input<'_>) -> Outcome {
        let layer = self.layer.with_context(|| {
            let name = input.name();
            format!("{name}: is a table of episodes, which does not say whose; give --layer guest, host or iothread")
        })?;
        let mut metadata = self.common.metadata(layer)?;
        metadata.idle_includes = self.idle_includes.unwrap_or(IdleIncludes::Unknown);
        let idler = self.idler.as_deref().unwrap_or(usual_idler(layer));
        self.common.import(input, metadata, |input, writer| Ok(import::csv::import(input, idler, writer)?))
    }

    pub(super) fn events(self, input: Input<'_>) -> Outcome {
        // The setting in force names its layer.
        let has = |layer: &Layer| {
            let name = self.common.in_force.first().and_then(|setting| setting.split('=').next());
            name.is_some_and(|name| index_of(*layer, name).is_some())
        };
        let layer = self.layer.or_else(|| [Layer::Host, Layer::Guest, Layer::Iothread].into_iter().find(has));
        let options = PerfOptions {
            layer,
            source: self.source.unwrap_or_default(),
            arch: self.arch,
            skip_unparsable: self.skip_unparsable,
        };
        let metadata = self.common.metadata(layer.unwrap_or(Layer::Host))?;
        self.common
            .import(input, metadata, |input, writer| Ok(import::perf::import(input, &options, writer)?))
    }

    pub(super) fn of_qemu(self, input: Input<'_>) -> Outcome {
        let metadata = self.common.metadata(Layer::Iothread)?;
        let options = self.qemu_options(&metadata)?;
        self.common.import(input, metadata, |input, writer| {
            let summary = import::qemu::import(input, options, writer)?;
            self.refuse_contradictions(&summary)?;
            Ok(summary)
        })
    }

    fn refuse_contradictions(&self, summary: &ImportSummary) -> anyhow::Result<()> {
        let Some(decisions) = &summary.decisions else { return Ok(()) };
        let contradicted = decisions.contradicted as f64 > decisions.traced as f64 * MOST_CONTRADICTED;
        if self.allow_contradictions || !contradicted {
            return Ok(());
        }
        let assumed = match self.common.in_force.is_empty() {
            true => "QEMU's defaults, which are assumed: give the values in force with --in-force NAME=VALUE",
            false => "the values of --in-force: were they changed meanwhile?",
        };
        bail!(
            "cannot write {}: {} of {} decisions in {} contradict {assumed}; --allow-contradictions writes it \
             anyway",
            self.common.output.display(),
            count(decisions.contradicted.into()),
            count(decisions.traced.into()),
            self.common.file.display(),
        )
    }

    fn qemu_options(&self, metadata: &Metadata) -> anyhow::Result<QemuOptions> {
        let rule = match &self.common.qemu {
            None => None,
            Some(text) => {
                let version = settings::qemu(text).map_err(|why| anyhow!("--qemu {text}: {why}"))?;
                let setting = setting_of(Layer::Iothread, version, &metadata.settings)
                    .unwrap_or_else(|| Setting::defaults(Layer::Iothread, version));
                Some((Revision::of(version)?, Params::from(&setting)))
            }
        };
        let sleeps = match &self.sleeps {
            None => None,
            Some(path) => Some(Sleeps::read(&path.display().to_string(), &Reader::open(path)?)?),
        };
        Ok(QemuOptions { rule, sleeps, context: self.context, skip_unparsable: self.skip_unparsable })
    }
}
