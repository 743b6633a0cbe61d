//! What landed is plain Parquet that another user's tools read as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use barque_bundle::{platform, wire};
use libtest_mimic::Trial;

use crate::site::{Site, json, open_to_all};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(duckdb_counts_the_same_rows_as_another_user, needs lacks_duckdb()),
        trial!(duckdb_reads_one_landed_file_over_https, needs lacks_httpfs()),
        trial!(a_strangers_client_enrolls_reconciles_pushes_and_checks_receipts, needs lacks_python_client()),
    ]
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

/// The extension that lets DuckDB read over HTTPS, as PyPI brings it for its own version.
fn httpfs() -> Option<PathBuf> {
    let find = "import duckdb_extension_httpfs as x, pathlib\n\
                print(next(pathlib.Path(x.__file__).parent.rglob('httpfs.duckdb_extension')))";
    let output = Command::new("python3").args(["-c", find]).output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    path.is_file().then_some(path)
}

fn lacks_httpfs() -> Option<String> {
    let lacks = duckdb().is_none() || httpfs().is_none();
    lacks.then(|| "needs duckdb-cli and duckdb-extension-httpfs of one version (PyPI)".to_owned())
}

fn duckdb_reads_one_landed_file_over_https() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    let good = fs::read(crate::fixture("parquet/good.parquet")).unwrap();
    spoke.put("factory/line 1/2024/03/31/02/m=1 100%.parquet", &good);
    assert_eq!(spoke.push().count("sent"), 1);
    let add = ["hub", "token", "add", "--name", "duck", "--data", &site.data(), "--json"];
    let token = json(&add)["token"].as_str().unwrap().to_owned();
    let path = wire::file_url_path("s/factory/line 1/2024/03/31/02/m=1 100%.parquet");
    let load = httpfs().unwrap().display().to_string();
    let query = |ca: &str| {
        let sql = format!(
            "LOAD '{load}'; SET enable_server_cert_verification = true; {ca}
             CREATE SECRET (TYPE http, BEARER_TOKEN '{token}');
             SELECT 'rows ' || count(*) || ' ' || count(DISTINCT device)
             FROM read_parquet('https://{}{path}');",
            hub.address
        );
        let mut command = Command::new(duckdb().unwrap());
        command.args(["-csv", "-noheader", "-c", &sql]).env("HOME", site.path());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&output.stdout) + &text(&output.stderr)
    };
    let ca = site.path().join("hub/tls/ca.pem");
    let answer = query(&format!("SET ca_cert_file = '{}';", ca.display()));
    assert!(answer.contains("rows 40 "), "{answer}");
    // Without the hub's CA the certificate is refused: it was really verified.
    let refused = query("");
    assert!(!refused.contains("rows"), "{refused}");
}

fn lacks_python_client() -> Option<String> {
    let found = Command::new("python3").args(["-c", "import requests, cryptography"]).output();
    let found = found.is_ok_and(|o| o.status.success());
    (!found).then(|| "needs python3 with requests and cryptography (PyPI)".to_owned())
}

/// A program that knows only docs/HTTP.md.
fn a_strangers_client_enrolls_reconciles_pushes_and_checks_receipts() {
    let site = Site::new();
    let _hub = site.hub();
    let added = json(&["hub", "spoke", "add", "stranger", "--data", &site.data(), "--json"]);
    let output = Command::new("python3")
        .arg(crate::here().join("../tests/stranger.py"))
        .arg(added["token"].as_str().unwrap())
        .arg(crate::fixture("parquet/good.parquet"))
        .arg(site.path().join("hub/tls/ca.pem"))
        .output()
        .unwrap();
    let (code, out, err) = crate::site::ended(output);
    assert_eq!((code, out.as_str()), (0, "ok\n"), "{err}");
    let good = fs::read(crate::fixture("parquet/good.parquet")).unwrap();
    let landed = crate::site::tree(&site.landing());
    assert_eq!(landed.len(), 2);
    for (name, (sha256, _)) in landed {
        assert_eq!(sha256, barque_bundle::Sha256Digest::of(&good), "{name}");
    }
}
