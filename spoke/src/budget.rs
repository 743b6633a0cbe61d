//! How much a pass may take of the link: bytes, time, pace, and bytes of a day or month. Pure but
//! for the pace, which waits.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use barque_bundle::quantity::QuantityError;
use barque_bundle::{ByteSize, Timestamp};
use tokio::sync::watch;

use crate::push::STOP_GRACE;
use crate::timetable::Timetable;

/// What a caller allows a pass; nothing is limited unless it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of bodies in this pass.
    pub max_bytes: Option<ByteSize>,
    /// From the start of the pass, the scan included.
    pub max_duration: Option<Duration>,
    pub bandwidth: Option<Timetable>,
    pub budget: Option<Budget>,
}

impl Limits {
    /// These, and where they say nothing, others.
    pub fn or(self, other: Self) -> Self {
        Self {
            max_bytes: self.max_bytes.or(other.max_bytes),
            max_duration: self.max_duration.or(other.max_duration),
            bandwidth: self.bandwidth.or(other.bandwidth),
            budget: self.budget.or(other.budget),
        }
    }
}

/// Bytes of bodies in a day or a month of UTC, over all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub bytes: ByteSize,
    pub per: Period,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Day,
    Month,
}

impl Period {
    /// The name of the period that holds a time: `2024-03-31` or `2024-03`.
    pub fn name(self, at: Timestamp) -> String {
        let text = at.to_string();
        let end = match self {
            Self::Day => "2024-03-31".len(),
            Self::Month => "2024-03".len(),
        };
        text.get(..end).unwrap_or_default().to_owned()
    }
}

impl FromStr for Budget {
    type Err = String;

    /// `500MB/day` or `10GB/month`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a budget; write 500MB/day or 10GB/month");
        let (bytes, per) = text.split_once('/').ok_or_else(wrong)?;
        let per = match per.trim() {
            "day" => Period::Day,
            "month" => Period::Month,
            _ => return Err(wrong()),
        };
        let bytes = bytes.parse().map_err(|e: QuantityError| e.to_string())?;
        Ok(Self { bytes, per })
    }
}

/// Tells a pass from outside to end; one that is never told when it is made by default.
#[derive(Clone, Debug, Default)]
pub struct Stop(Option<watch::Receiver<bool>>);

impl Stop {
    /// Ends what it is given to once the sender holds true.
    pub fn new(told: watch::Receiver<bool>) -> Self {
        Self(Some(told))
    }

    pub fn is_told(&self) -> bool {
        self.0.as_ref().is_some_and(|s| *s.borrow())
    }

    /// Ends when it is told; never otherwise.
    pub async fn told(&self) {
        if let Some(told) = &self.0
            && told.clone().wait_for(|s| *s).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// What a pass may still take.
#[derive(Clone, Debug)]
pub struct Allowance {
    stop: Stop,
    deadline: Option<Instant>,
    max_bytes: Option<u64>,
    /// What is left of the day's or month's budget at the start of the pass.
    budget_bytes: Option<u64>,
}

impl Allowance {
    pub fn new(limits: &Limits, started: Instant, spent_in_period: u64, stop: Stop) -> Self {
        Self {
            stop,
            deadline: limits.max_duration.and_then(|d| started.checked_add(d)),
            max_bytes: limits.max_bytes.map(|b| b.0),
            budget_bytes: limits.budget.map(|b| b.bytes.0.saturating_sub(spent_in_period)),
        }
    }

    /// Ends when the pass may go on no longer, or so long after; never when it may.
    pub fn over(&self, grace: Duration) -> impl Future<Output = ()> + use<> {
        let (stop, deadline) = (self.stop.clone(), self.deadline);
        async move {
            let late = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until((at + grace).into()).await,
                    None => std::future::pending().await,
                }
            };
            let stopped = async {
                stop.told().await;
                tokio::time::sleep(grace.min(STOP_GRACE)).await;
            };
            tokio::select! {
                () = late => {}
                () = stopped => {}
            }
        }
    }

    /// Whether the pass may go on no longer, as far as time goes.
    pub fn is_time_up(&self, now: Instant) -> bool {
        self.stop.is_told() || self.deadline.is_some_and(|d| now >= d)
    }

    /// Why time is up when it is, in the word that [`Allowance::is_used_up`] has for it.
    pub fn end_of_time(&self) -> &'static str {
        if self.stop.is_told() { "stopped" } else { "max_duration" }
    }

    /// What is left of a budget of which so much is spent.
    pub fn set_budget(&mut self, budget: &Budget, spent: u64) {
        self.budget_bytes = Some(budget.bytes.0.saturating_sub(spent));
    }

    /// Bytes that may still go, given what went in this pass; none when nothing limits them.
    pub fn left(&self, gone: u64) -> Option<u64> {
        let all = [self.max_bytes, self.budget_bytes];
        all.into_iter().flatten().map(|b| b.saturating_sub(gone)).min()
    }

    /// Which limit on bytes ends first, in the word that [`Allowance::is_used_up`] has for it.
    pub fn tighter(&self) -> &'static str {
        let budget = self.budget_bytes.unwrap_or(u64::MAX);
        if self.max_bytes.is_some_and(|b| b <= budget) { "max_bytes" } else { "budget" }
    }

    /// Why no more may go, in one word; none while it may.
    pub fn is_used_up(&self, gone: u64, now: Instant) -> Option<&'static str> {
        if self.is_time_up(now) {
            return Some(self.end_of_time());
        }
        if self.max_bytes.is_some_and(|b| gone >= b) {
            return Some("max_bytes");
        }
        self.budget_bytes.is_some_and(|b| gone >= b).then_some("budget")
    }
}

/// Most bytes that go at once under a pace, so that others on the link wait for little.
pub const STEP_BYTES: usize = 4 * 1024;

/// Lets bytes go at a rate, in small steps.
pub struct Pace {
    timetable: Timetable,
    /// Hub time, as far as it is known.
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// When the next step may go.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub fn new(
        timetable: Timetable,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self { timetable, clock: Box::new(clock), next: Mutex::default() }
    }

    /// Waits until the next step of what is to go may go, and says how many bytes that is; idle
    /// time is not saved up.
    pub fn step(&self, bytes: usize) -> usize {
        let Some(rate) = self.timetable.rate_at((self.clock)()) else {
            return bytes;
        };
        let step = bytes.min(STEP_BYTES);
        let until = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let at = next.unwrap_or(now).max(now);
            *next = Some(at + rate.time_for(step as u64));
            at
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts_and_says_its_word() {
        let start = Instant::now();
        let limits = Limits {
            max_bytes: Some(ByteSize(100)),
            max_duration: Some(Duration::from_secs(10)),
            bandwidth: None,
            budget: Some("150B/day".parse().unwrap()),
        };
        let a = Allowance::new(&limits, start, 90, Stop::default());
        assert_eq!((a.left(0), a.left(30), a.left(99)), (Some(60), Some(30), Some(0)));
        assert_eq!(a.is_used_up(59, start), None);
        assert_eq!(a.tighter(), "budget");
        assert_eq!(a.is_used_up(60, start), Some("budget"));
        assert_eq!(a.is_used_up(100, start), Some("max_bytes"));
        assert_eq!(a.is_used_up(0, start + Duration::from_secs(10)), Some("max_duration"));
        let free = Allowance::new(&Limits::default(), start, 90, Stop::default());
        assert_eq!((free.left(u64::MAX), free.is_used_up(u64::MAX, start)), (None, None));
    }

    #[test]
    fn a_budget_is_of_a_day_or_a_month_of_utc() {
        let budget: Budget = "10GB/month".parse().unwrap();
        let at: Timestamp = "2024-03-31T23:59:59.999Z".parse().unwrap();
        assert_eq!(budget.per.name(at), "2024-03");
        assert_eq!(budget.per.name(at.plus_ms(1)), "2024-04");
        assert_eq!(Period::Day.name(at), "2024-03-31");
        for wrong in ["10GB", "10/day", "10GB/week", "x/day"] {
            assert!(wrong.parse::<Budget>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pace_lets_no_more_go_than_its_rate() {
        let saturday: Timestamp = "2024-03-30T12:00:00Z".parse().unwrap();
        let pace = Pace::new("00:00,1MB/s Sun-00:00,off".parse().unwrap(), move || saturday);
        let start = Instant::now();
        for _ in 0..25 {
            assert_eq!(pace.step(100_000), STEP_BYTES);
        }
        // The first step goes at once.
        assert!(start.elapsed() >= Duration::from_micros(24 * 4096));
        let free = Pace::new("00:00,1MB/s Sun-00:00,off".parse().unwrap(), move || {
            saturday.plus_ms(86_400_000)
        });
        assert_eq!(free.step(100_000), 100_000);
    }
}
