//! A pace that changes over the week, in the notation of rclone's `--bwlimit`:
//! `08:00,512kB/s Mon-18:00,off`. Pure.

use std::str::FromStr;

use barque_bundle::Timestamp;
use barque_bundle::quantity::ByteRate;

const MINUTES_A_DAY: u32 = 24 * 60;
const MINUTES_A_WEEK: u32 = 7 * MINUTES_A_DAY;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// One rate for all times, or one from each given time of the week (UTC) on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// Minutes since Monday 00:00 UTC, ascending and without repeats; never empty.
    slots: Vec<(u32, Option<ByteRate>)>,
}

impl Timetable {
    /// The rate at a time; none when nothing limits it then.
    pub fn rate_at(&self, at: Timestamp) -> Option<ByteRate> {
        let minute = minute_of_week(at);
        let begun = self.slots.iter().rev().find(|(from, _)| *from <= minute);
        // Before the first slot of the week the last one of the week before goes on.
        begun.or(self.slots.last()).and_then(|(_, rate)| *rate)
    }
}

fn minute_of_week(at: Timestamp) -> u32 {
    // 1970-01-01 was a Thursday.
    const THURSDAY: i64 = 3 * MINUTES_A_DAY as i64;
    let minutes = (at.unix_seconds().div_euclid(60) + THURSDAY).rem_euclid(MINUTES_A_WEEK.into());
    u32::try_from(minutes).unwrap_or(0)
}

impl FromStr for Timetable {
    type Err = String;

    /// A rate such as `2MB/s`, or slots `[DAY-]HH:MM,RATE` with a space between them, where a rate
    /// may be `off`. A slot without a day holds on each day.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "{what:?} is not a pace; write 2MB/s, 5Mbit/s or a timetable in UTC such as \
                 \"08:00,512kB/s 18:00,off Sat-00:00,off\""
            )
        };
        if !text.contains(',') {
            let rate = rate(text.trim()).map_err(|_| wrong(text))?;
            return Ok(Self { slots: vec![(0, rate)] });
        }
        let mut slots = std::collections::BTreeMap::new();
        let mut of_a_day = Vec::new();
        for slot in text.split_whitespace() {
            let (time, pace) = slot.split_once(',').ok_or_else(|| wrong(slot))?;
            let pace = rate(pace).map_err(|_| wrong(slot))?;
            match time.split_once('-') {
                Some((day, time)) => {
                    let day = day_of(day).ok_or_else(|| wrong(slot))?;
                    let minute = minute_of_day(time).ok_or_else(|| wrong(slot))?;
                    of_a_day.push((day * MINUTES_A_DAY + minute, pace));
                }
                None => {
                    let minute = minute_of_day(time).ok_or_else(|| wrong(slot))?;
                    slots.extend((0..7).map(|day| (day * MINUTES_A_DAY + minute, pace)));
                }
            }
        }
        // What names its day counts more than what holds on each.
        slots.extend(of_a_day);
        Ok(Self { slots: slots.into_iter().collect() })
    }
}

fn rate(text: &str) -> Result<Option<ByteRate>, String> {
    match text {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| text.to_owned()),
    }
}

fn day_of(text: &str) -> Option<u32> {
    let name = text.to_ascii_lowercase();
    let day =
        DAYS.iter().position(|d| name == *d || (name.starts_with(d) && name.ends_with("day")));
    day.and_then(|d| u32::try_from(d).ok())
}

fn minute_of_day(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_rate_holds_always_and_a_timetable_from_each_of_its_times_on() {
        let rate = |t: &str| Some(t.parse::<ByteRate>().unwrap());
        let one: Timetable = "2MB/s".parse().unwrap();
        assert_eq!(one.rate_at(at("2024-03-31T02:00:00Z")), rate("2MB/s"));
        let t: Timetable = "08:00,512kB/s 18:00,10MB/s Sat-08:00,off".parse().unwrap();
        // A Friday, and the Saturday after it.
        assert_eq!(t.rate_at(at("2024-03-29T08:00:00Z")), rate("512kB/s"));
        assert_eq!(t.rate_at(at("2024-03-29T17:59:59Z")), rate("512kB/s"));
        assert_eq!(t.rate_at(at("2024-03-30T07:59:00Z")), rate("10MB/s"));
        assert_eq!(t.rate_at(at("2024-03-30T08:00:00Z")), None);
        assert_eq!(t.rate_at(at("2024-03-30T18:00:00Z")), rate("10MB/s"));
        // Monday before the first slot: as on Sunday evening.
        assert_eq!(t.rate_at(at("2024-04-01T00:00:00Z")), rate("10MB/s"));
        let named: Timetable = "Sunday-00:00,off Wed-12:30,1Mbit/s".parse().unwrap();
        assert_eq!(named.rate_at(at("2024-04-03T12:29:00Z")), None);
        assert_eq!(named.rate_at(at("2024-04-03T12:30:00Z")), rate("1Mbit/s"));
    }

    #[test]
    fn what_is_no_timetable_is_refused_with_an_example() {
        for wrong in ["", "2", "24:00,1MB/s", "08:60,1MB/s", "Xyz-08:00,1MB/s", "08:00,2 x"] {
            let e = wrong.parse::<Timetable>().unwrap_err();
            assert!(e.contains("timetable"), "{wrong}: {e}");
        }
    }
}
