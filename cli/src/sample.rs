//! Plausible sensor Parquet: several measurements, hours, row groups, zstd and snappy.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use barque_bundle::ByteSize;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

/// What to write.
pub struct Plan {
    pub files: u64,
    pub rows: u32,
    pub large: Option<ByteSize>,
    pub seed: u64,
}

#[derive(Debug, Default, Serialize)]
pub struct Written {
    pub files: u64,
    pub rows: u64,
    pub bytes: u64,
}

const SERIES: [(&str, &str, &[&str]); 4] = [
    ("factory", "temperature", &["celsius", "humidity"]),
    ("factory", "vibration", &["x", "y", "z"]),
    ("vehicle", "gps", &["lat", "lon", "speed"]),
    ("vehicle", "engine", &["rpm", "oil_bar", "coolant_celsius"]),
];
/// 2024-03-31T00:00:00Z.
const START_S: i64 = 1_711_843_200;
/// Files of one measurement and hour.
const FILES_AN_HOUR: u64 = 4;

/// Writes the files below `dir`; `tell` hears how many are done.
pub fn write(dir: &Path, plan: &Plan, tell: impl Fn(u64)) -> anyhow::Result<Written> {
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let mut written = Written::default();
    for i in 0..plan.files {
        let series = usize::try_from(i % SERIES.len() as u64)?;
        let within = i / SERIES.len() as u64;
        let hour = i64::try_from(within / FILES_AN_HOUR)?;
        let part = within % FILES_AN_HOUR;
        let file =
            Sensor { series, hour, rows: plan.rows, name: format!("part-{part:03}.parquet") };
        let codec =
            if i % 2 == 0 { Compression::ZSTD(ZstdLevel::default()) } else { Compression::SNAPPY };
        write_file(dir, &file, codec, plan.rows / 2 + 1, &mut random, &mut written)?;
        if i % 50 == 0 {
            tell(i);
        }
    }
    if let Some(size) = plan.large {
        write_large(dir, size, &mut random, &mut written)?;
    }
    Ok(written)
}

struct Sensor {
    series: usize,
    hour: i64,
    rows: u32,
    name: String,
}

fn hour_folder(database: &str, measurement: &str, hour: i64) -> String {
    let at = barque_bundle::Timestamp::from_unix_ms((START_S + hour * 3600) * 1000).to_datetime();
    let (y, m, d, h) = (at.year(), u8::from(at.month()), at.day(), at.hour());
    format!("{database}/{measurement}/{y:04}/{m:02}/{d:02}/{h:02}")
}

fn write_file(
    dir: &Path,
    file: &Sensor,
    codec: Compression,
    group_rows: u32,
    random: &mut SmallRng,
    written: &mut Written,
) -> anyhow::Result<()> {
    let (database, measurement, _) = SERIES[file.series];
    let folder = dir.join(hour_folder(database, measurement, file.hour));
    let groups = groups(file, group_rows, random);
    let properties = WriterProperties::builder().set_compression(codec).build();
    let path = folder.join(&file.name);
    store(&path, &groups, 1, properties)?;
    written.files += 1;
    written.rows += u64::from(file.rows);
    written.bytes += fs::metadata(&path)?.len();
    Ok(())
}

/// One file of at least this size: random numbers that no codec makes smaller.
fn write_large(
    dir: &Path,
    size: ByteSize,
    random: &mut SmallRng,
    written: &mut Written,
) -> anyhow::Result<()> {
    const GROUP_ROWS: u32 = 131_072;
    let file = Sensor { series: 3, hour: 0, rows: GROUP_ROWS, name: "large.parquet".to_owned() };
    let groups = groups(&file, GROUP_ROWS, random);
    // Plain encoding: time and three numbers of eight bytes, and a text of nine behind its length.
    let repeats = size.0.div_ceil(u64::from(GROUP_ROWS) * (4 * 8 + 4 + 9));
    let (database, measurement, _) = SERIES[file.series];
    let path = dir.join(hour_folder(database, measurement, file.hour)).join(&file.name);
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .build();
    store(&path, &groups, repeats, properties)?;
    written.files += 1;
    written.rows += u64::from(GROUP_ROWS) * repeats;
    written.bytes += fs::metadata(&path)?.len();
    Ok(())
}

/// Written under a hidden name and renamed, as a careful writer does.
fn store(
    path: &Path,
    groups: &[Group],
    repeats: u64,
    properties: WriterProperties,
) -> anyhow::Result<()> {
    let schema = Arc::new(groups.first().context("a file has rows")?.schema()?);
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.writing"));
    let file = File::create(&temporary)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    for _ in 0..repeats {
        groups.iter().try_for_each(|group| group.write(&mut writer))?;
    }
    writer.close()?;
    fs::rename(&temporary, path).with_context(|| format!("cannot name {}", path.display()))
}

/// One row group: column by column.
struct Group {
    times: Vec<i64>,
    devices: Vec<ByteArray>,
    numbers: Vec<(&'static str, Vec<f64>)>,
}

impl Group {
    fn schema(&self) -> anyhow::Result<Type> {
        let mut message = "message sample {
            required int64 time (TIMESTAMP(MICROS, true));
            required binary device (STRING);"
            .to_owned();
        for (name, _) in &self.numbers {
            message += &format!(" required double {name};");
        }
        Ok(parse_message_type(&format!("{message} }}"))?)
    }

    fn write(&self, writer: &mut SerializedFileWriter<File>) -> anyhow::Result<()> {
        let mut group = writer.next_row_group()?;
        write_column::<Int64Type>(&mut group, &self.times)?;
        write_column::<ByteArrayType>(&mut group, &self.devices)?;
        for (_, numbers) in &self.numbers {
            write_column::<DoubleType>(&mut group, numbers)?;
        }
        group.close()?;
        Ok(())
    }
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
) -> anyhow::Result<()> {
    let mut column = group.next_column()?.context("the schema has this column")?;
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()?;
    Ok(())
}

/// The rows of a file in groups of so many at the most.
fn groups(file: &Sensor, group_rows: u32, random: &mut SmallRng) -> Vec<Group> {
    let (_, _, columns) = SERIES[file.series];
    let start = (START_S + file.hour * 3600) * 1_000_000;
    let step = 3_600_000_000 / i64::from(file.rows.max(1));
    let numbers = |rows: &Range<u32>, base: f64, random: &mut SmallRng| {
        rows.clone().map(|_| base + random.random::<f64>()).collect()
    };
    let firsts = (0..file.rows).step_by(group_rows as usize);
    let ranges = firsts.map(|first| first..file.rows.min(first.saturating_add(group_rows)));
    ranges
        .map(|rows| Group {
            times: rows.clone().map(|i| start + i64::from(i) * step).collect(),
            devices: rows.clone().map(|i| format!("device-{:02}", i % 7).as_str().into()).collect(),
            numbers: (columns.iter().enumerate())
                .map(|(i, name)| (*name, numbers(&rows, 20.0 * (i + 1) as f64, random)))
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_writes_the_same_files_and_all_pass_the_door() {
        let write_to = |dir: &Path| {
            let plan = Plan { files: 9, rows: 20, large: Some(ByteSize(1_000_000)), seed: 3 };
            write(dir, &plan, |_| ()).unwrap()
        };
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let written = write_to(a.path());
        assert_eq!((written.files, written.bytes), (10, write_to(b.path()).bytes));
        assert!(written.bytes > 1_000_000);
        let first = "factory/temperature/2024/03/31/00/part-000.parquet";
        let bytes = fs::read(a.path().join(first)).unwrap();
        assert_eq!(bytes, fs::read(b.path().join(first)).unwrap());
        barque_bundle::door::check(&mut std::io::Cursor::new(bytes)).unwrap();
    }
}
