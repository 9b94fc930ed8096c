//! Papers, their experiments and the runs that repeat them, as data.

/// A paper.
#[derive(Debug)]
pub struct Paper {
    /// Name for `--only`.
    pub key: &'static str,
    /// Short name, which heads its part of the page.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// Authors, place and year.
    pub by: &'static str,
    /// Describes its system, its machines, and the substitute that is run here.
    pub text: &'static str,
    /// Its experiments.
    pub rows: &'static [Row],
    /// Charts below the table.
    pub charts: &'static [Curves],
}

/// An experiment of a paper and its repetition.
#[derive(Debug)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Section and figure of the paper.
    pub place: &'static str,
    /// The paper's figure and what it compared with, in words. A figure that the paper only draws
    /// has no number.
    pub claim: &'static str,
    /// Ratio of the paper's new transport to what it was compared with: of times or of rates, as
    /// measured here.
    pub ratio: Option<f64>,
    /// Description of the run that takes its place here.
    pub here: &'static str,
    /// Figures shown.
    pub take: Take,
    /// Why the gain here may be smaller, in one sentence.
    pub less: &'static str,
    /// Why it may be larger, in one sentence.
    pub more: &'static str,
}

/// Figures that a row shows.
#[derive(Clone, Copy, Debug)]
pub enum Take {
    /// One figure compared with another.
    Pair(Pair),
    /// Of all sizes the one with the best ratio.
    Best(Pair),
    /// The smallest size at and above which the first contender is always better, and that of the
    /// paper.
    Threshold(Pair, u64),
    /// One figure alone.
    Alone(Pair),
    /// Nothing, for this reason.
    Not(&'static str),
}

/// Two contenders of one quantity.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Name of the run.
    pub run: &'static str,
    /// Quantity.
    pub what: &'static str,
    /// Bytes; `None` for all sizes, or for a quantity without a size.
    pub size: Option<u64>,
    /// The new transport.
    pub ours: &'static str,
    /// Transport that ours is compared with.
    pub reference: &'static str,
}

impl Take {
    /// Returns the name of the run; `None` if nothing is run.
    pub fn run(&self) -> Option<&'static str> {
        self.pair().map(|pair| pair.run)
    }

    /// Returns the contenders; `None` if nothing is run.
    pub fn pair(&self) -> Option<&Pair> {
        match self {
            Take::Pair(pair) | Take::Best(pair) | Take::Threshold(pair, _) | Take::Alone(pair) => {
                Some(pair)
            }
            Take::Not(_) => None,
        }
    }
}

/// A chart.
#[derive(Debug)]
pub struct Curves {
    /// Name of its file, without extension.
    pub name: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Name of the run.
    pub run: &'static str,
    /// Quantities: one is drawn over the sizes, several are groups of bars, each with its label.
    pub what: &'static [(&'static str, &'static str)],
    /// Lines or bars, in order.
    pub contenders: &'static [&'static str],
}

/// A measurement that several rows may need.
#[derive(Debug)]
pub struct Run {
    /// Name in `papers.json`.
    pub name: &'static str,
    /// Quantity that it measures.
    pub title: &'static str,
    /// Usual seconds on two cores, in full and quick; 0: not part of a quick run.
    pub seconds: [u64; 2],
    /// Number of rounds, in full and quick.
    pub rounds: [usize; 2],
}

/// Returns a pair, for tables of rows.
pub(super) const fn pair(
    run: &'static str,
    what: &'static str,
    size: Option<u64>,
    ours: &'static str,
    reference: &'static str,
) -> Pair {
    Pair {
        run,
        what,
        size,
        ours,
        reference,
    }
}
