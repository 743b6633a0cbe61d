//! Plausible sensor Parquet: several measurements, hours, row groups, zstd and snappy.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use barque_bundle::ByteSize;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
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
    let batch = batch(file, random)?;
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_max_row_group_row_count(Some(group_rows as usize))
        .build();
    let path = folder.join(&file.name);
    store(&path, &batch, 1, properties)?;
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
    let batch = batch(&file, random)?;
    // Plain encoding: time and three numbers of eight bytes, and a text of nine behind its length.
    let repeats = size.0.div_ceil(u64::from(GROUP_ROWS) * (4 * 8 + 4 + 9));
    let (database, measurement, _) = SERIES[file.series];
    let path = dir.join(hour_folder(database, measurement, file.hour)).join(&file.name);
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(GROUP_ROWS as usize))
        .build();
    store(&path, &batch, repeats, properties)?;
    written.files += 1;
    written.rows += u64::from(GROUP_ROWS) * repeats;
    written.bytes += fs::metadata(&path)?.len();
    Ok(())
}

/// Written under a hidden name and renamed, as a careful writer does.
fn store(
    path: &Path,
    batch: &RecordBatch,
    repeats: u64,
    properties: WriterProperties,
) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.writing"));
    let file = File::create(&temporary)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
    for _ in 0..repeats {
        writer.write(batch)?;
    }
    writer.close()?;
    fs::rename(&temporary, path).with_context(|| format!("cannot name {}", path.display()))
}

fn batch(file: &Sensor, random: &mut SmallRng) -> anyhow::Result<RecordBatch> {
    let (_, _, columns) = SERIES[file.series];
    let utc: Arc<str> = "UTC".into();
    let mut fields = vec![
        Field::new(
            "time",
            DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::clone(&utc))),
            false,
        ),
        Field::new("device", DataType::Utf8, false),
    ];
    let start = (START_S + file.hour * 3600) * 1_000_000;
    let step = 3_600_000_000 / i64::from(file.rows.max(1));
    let times = (0..i64::from(file.rows)).map(|i| start + i * step);
    let devices = (0..file.rows).map(|i| format!("device-{:02}", i % 7));
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone(utc)),
        Arc::new(StringArray::from_iter_values(devices)),
    ];
    for (i, name) in columns.iter().enumerate() {
        fields.push(Field::new(*name, DataType::Float64, false));
        let base = 20.0 * (i + 1) as f64;
        let values = (0..file.rows).map(|_| base + random.random::<f64>());
        arrays.push(Arc::new(Float64Array::from_iter_values(values)));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
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
