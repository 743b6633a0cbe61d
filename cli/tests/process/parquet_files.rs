//! Real files land bit for bit; damaged ones are held back by name and stop no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use libtest_mimic::Trial;

use crate::site::{Site, Spoke, tree};
use crate::{fixture, lacks_shared, shared, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(every_real_parquet_file_lands_bit_for_bit, needs lacks_shared("parquet-testing/data")),
        trial!(footers_are_read_as_a_general_reader_reads_them, needs lacks_shared("parquet-testing/data")),
        trial!(of_the_field_cases_exactly_seventeen_are_held_back, needs lacks_shared("cases/out/parquet")),
        trial!(damaged_fixtures_are_held_back_with_their_reason_and_stop_no_other),
        trial!(encrypted_fixtures_land_bit_for_bit),
    ]
}

/// Puts every `.parquet` file below a folder into the spoke's source under a partition.
fn put_all(spoke: &Spoke, from: &Path, under: &str) -> usize {
    let files = tree(from);
    let parquet = files.keys().filter(|p| p.ends_with(".parquet"));
    parquet.map(|p| spoke.put(&format!("{under}/{p}"), &fs::read(from.join(p)).unwrap())).count()
}

fn every_real_parquet_file_lands_bit_for_bit() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let good = put_all(&spoke, &shared("parquet-testing/data"), "apache/data");
    let bad = put_all(&spoke, &shared("parquet-testing/bad_data"), "apache/bad_data");
    assert_eq!((good, bad), (75, 8));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("skipped")), (0, 83, 0), "{pass:?}");
    site.assert_landed(&[&spoke]);
}

/// The rule that each damaged file breaks.
const HELD_BACK: [(&str, &str); 17] = [
    ("zero_bytes", "parquet_empty"),
    ("magic_only_4", "parquet_too_short"),
    ("two_magics_8", "parquet_too_short"),
    ("empty_footer_12", "parquet_footer_empty"),
    ("text", "parquet_head_magic"),
    ("captive_portal", "parquet_head_magic"),
    ("gzipped", "parquet_head_magic"),
    ("crlf_mangled", "parquet_footer_malformed"),
    ("trailing_newline", "parquet_tail_magic"),
    ("truncated_half", "parquet_tail_magic"),
    ("truncated_last_byte", "parquet_tail_magic"),
    ("no_footer_still_open", "parquet_tail_magic"),
    ("zero_tail_right_size", "parquet_tail_magic"),
    ("footer_len_max", "parquet_footer_length"),
    ("footer_len_negative", "parquet_footer_length"),
    ("footer_len_just_over", "parquet_footer_length"),
    ("footer_len_zero", "parquet_footer_empty"),
];

fn expected_reasons() -> BTreeMap<String, u64> {
    let mut reasons = BTreeMap::new();
    for (_, code) in HELD_BACK {
        *reasons.entry(code.to_owned()).or_default() += 1;
    }
    reasons
}

/// Pushes a folder of shapes; exactly the damaged ones are held back, each by its rule.
fn assert_seventeen_held_back(from: &Path) {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let all = put_all(&spoke, from, "d/m/2024/03/31/02") as u64;
    let pass = spoke.push();
    assert_eq!(
        (pass.code, pass.count("skipped"), pass.count("sent")),
        (0, 17, all - 17),
        "{pass:?}"
    );
    let reasons: BTreeMap<String, u64> =
        serde_json::from_value(pass.report["skipped_by"].clone()).unwrap();
    assert_eq!(reasons, expected_reasons());
    for (name, _) in HELD_BACK {
        let path = spoke.source().join(format!("d/m/2024/03/31/02/{name}.parquet"));
        fs::remove_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    site.assert_landed(&[&spoke]);
}

fn of_the_field_cases_exactly_seventeen_are_held_back() {
    assert_seventeen_held_back(&shared("cases/out/parquet"));
}

fn damaged_fixtures_are_held_back_with_their_reason_and_stop_no_other() {
    assert_seventeen_held_back(&fixture("parquet"));
}

fn encrypted_fixtures_land_bit_for_bit() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for name in ["encrypted_footer", "signed_plain_footer"] {
        let bytes = fs::read(fixture(&format!("parquet/{name}.parquet"))).unwrap();
        spoke.put(&format!("d/m/{name}.parquet"), &bytes);
    }
    assert_eq!(spoke.push().count("sent"), 2);
    site.assert_landed(&[&spoke]);
}

/// What the parquet crate says of the same file: rows, row groups, columns.
type Said = (u64, u64, Vec<(String, String)>);

fn by_the_parquet_crate(path: &Path) -> Option<Said> {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).ok()?;
    let metadata = reader.metadata();
    let columns = metadata.file_metadata().schema_descr().columns();
    let column = |c: &parquet::schema::types::ColumnDescPtr| {
        (c.path().string(), c.self_type().get_basic_info().repetition().to_string())
    };
    let rows = u64::try_from(metadata.file_metadata().num_rows()).ok()?;
    Some((rows, metadata.num_row_groups() as u64, columns.iter().map(column).collect()))
}

fn footers_are_read_as_a_general_reader_reads_them() {
    let mut compared = 0;
    for folder in [shared("parquet-testing/data"), fixture("parquet"), fixture("schemas")] {
        for name in tree(&folder).into_keys().filter(|n| n.ends_with(".parquet")) {
            let path = folder.join(&name);
            let Some(theirs) = by_the_parquet_crate(&path) else { continue };
            let ours = barque_hub::footer::read(&mut fs::File::open(&path).unwrap());
            let ours = ours.unwrap_or_else(|e| panic!("{name}: {e}"));
            let columns = ours.columns.into_iter().map(|c| (c.path, c.repetition)).collect();
            assert_eq!((ours.rows, ours.row_groups, columns), theirs, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 60, "only {compared} files were compared");
}
