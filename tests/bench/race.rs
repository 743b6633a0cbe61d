//! Contenders that do the same work in turn (A B C, A B C, ...), and what each run cost.

use std::time::Instant;

use crate::process::{busy_s, wait_until_quiet, write_out};
use crate::stats::Sorted;

/// What one run cost: time on the wall, and time of processors in all of its processes.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub seconds: f64,
    pub cpu_seconds: f64,
}

impl Cost {
    /// What the work cost on a machine that does nothing else.
    pub fn of(work: impl FnOnce()) -> Self {
        // What was written before is not written out meanwhile.
        write_out();
        wait_until_quiet();
        let (begun, before) = (Instant::now(), busy_s());
        work();
        Self { seconds: begun.elapsed().as_secs_f64(), cpu_seconds: busy_s() - before }
    }
}

/// One way to do the work.
pub struct Contender<'a> {
    name: String,
    rounds: usize,
    run: Box<dyn FnMut(usize) -> Cost + 'a>,
}

impl<'a> Contender<'a> {
    /// `run` hears the number of its round, from 0.
    pub fn new(name: &str, rounds: usize, run: impl FnMut(usize) -> Cost + 'a) -> Self {
        Self { name: name.to_owned(), rounds, run: Box::new(run) }
    }
}

/// How a contender did.
pub struct Standing {
    pub name: String,
    pub seconds: Sorted,
    pub cpu_seconds: Sorted,
}

/// Runs all contenders in turn, so that a machine whose pace drifts favours none; one without a
/// round is left out.
///
/// `BENCH_ONLY` may name some of them, with commas between, for a closer look.
pub fn race(mut contenders: Vec<Contender>) -> Vec<Standing> {
    if let Ok(only) = std::env::var("BENCH_ONLY") {
        contenders.retain(|c| only.split(',').any(|name| name == c.name));
    }
    contenders.retain(|c| c.rounds > 0);
    let mut costs: Vec<Vec<Cost>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..contenders.iter().map(|c| c.rounds).max().unwrap_or(0) {
        let turn = contenders.iter_mut().zip(&mut costs).filter(|(c, _)| round < c.rounds);
        for (contender, costs) in turn {
            let cost = (contender.run)(round);
            let Cost { seconds, cpu_seconds } = cost;
            let (name, round) = (&contender.name, round + 1);
            say(&format!("round {round}: {name}: {seconds:.2} s, processors {cpu_seconds:.2} s"));
            costs.push(cost);
        }
    }
    let standing = |(c, costs): (Contender, Vec<Cost>)| Standing {
        name: c.name,
        seconds: Sorted::of(costs.iter().map(|c| c.seconds)),
        cpu_seconds: Sorted::of(costs.iter().map(|c| c.cpu_seconds)),
    };
    contenders.into_iter().zip(costs).map(standing).collect()
}

/// Tells how long work goes, beside its result.
#[expect(clippy::print_stderr, reason = "progress of long work")]
pub fn say(what: &str) {
    eprintln!("  {what}");
}

/// The median time of a contender by its name.
pub fn median_of(standings: &[Standing], name: &str) -> f64 {
    standings.iter().find(|s| s.name == name).unwrap().seconds.median()
}

/// A table of all, each as a multiple of the first one's time.
pub fn table(standings: &[Standing], files: u64, bytes: f64) -> String {
    let mut out = String::from(
        "| | s, median | min | max | files/s | MB/s | processors s | time over Barque's |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let first = standings[0].seconds.median();
    for s in standings {
        let median = s.seconds.median();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = files as f64 / median;
        out += &format!(
            "| {} | {median:.2} | {:.2} | {:.2} | {rate:.0} | {:.0} | {:.2} | {:.2} |\n",
            s.name,
            s.seconds.min(),
            s.seconds.max(),
            bytes / median / 1e6,
            s.cpu_seconds.median(),
            median / first,
        );
    }
    out
}
