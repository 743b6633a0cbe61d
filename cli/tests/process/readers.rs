//! What landed is plain Parquet that another user's tools read as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use barque_bundle::platform;
use libtest_mimic::Trial;

use crate::site::{Site, json, open_to_all};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(duckdb_counts_the_same_rows_as_another_user, needs lacks_duckdb())]
}

fn duckdb() -> Option<PathBuf> {
    // The command on the path may be a small script; Python knows where the program itself lies.
    let find = "import duckdb_cli, pathlib, os\n\
                root = pathlib.Path(duckdb_cli.__file__).parent\n\
                print(next(p for p in root.rglob('duckdb*') if p.is_file() and os.access(p, os.X_OK)))";
    let by_python = Command::new("python3").args(["-c", find]).output().ok();
    let by_python = by_python.filter(|o| o.status.success()).map(|o| o.stdout);
    let path = by_python.map(|out| PathBuf::from(String::from_utf8_lossy(&out).trim()))?;
    path.is_file().then_some(path)
}

fn lacks_duckdb() -> Option<String> {
    if platform::effective_uid() != 0 {
        return Some("needs root, to become another user".to_owned());
    }
    duckdb().is_none().then(|| "needs duckdb (PyPI: duckdb-cli)".to_owned())
}

fn duckdb_counts_the_same_rows_as_another_user() {
    use std::os::unix::process::CommandExt as _;
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let source = spoke.source().display().to_string();
    let rows = json(&["sample", &source, "--files", "60", "--json"])["rows"].as_u64().unwrap();
    assert_eq!(spoke.push().count("sent"), 60);
    let program = site.path().join("duckdb");
    fs::copy(duckdb().unwrap(), &program).unwrap();
    open_to_all(&program);
    let query = format!("select count(*) from '{}/**/*.parquet'", site.landing().display());
    let output = Command::new(program)
        .args(["-csv", "-noheader", "-c", &query])
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(text, rows.to_string(), "{}", String::from_utf8_lossy(&output.stderr));
    // The rest of the data folder is not for others.
    let other = Command::new("ls").arg(site.data()).uid(65534).gid(65534).output().unwrap();
    assert!(!other.status.success());
}
