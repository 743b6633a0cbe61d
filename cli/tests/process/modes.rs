//! Who can read what a hub and a spoke leave on disk, seen from outside.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use libtest_mimic::Trial;

use crate::site::{Site, tiny};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(only_landing_and_the_public_certificate_are_for_others)]
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn only_landing_and_the_public_certificate_are_for_others() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    let data = site.path().join("hub");
    assert_eq!(mode(&data), 0o711);
    for item in fs::read_dir(&data).unwrap() {
        let path = item.unwrap().path();
        let expected = match path.file_name().unwrap().to_str().unwrap() {
            "landing" => 0o755,
            "tls" => 0o711,
            "staging" => 0o700,
            _ => 0o600,
        };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
    for item in fs::read_dir(data.join("tls")).unwrap() {
        let path = item.unwrap().path();
        let expected = if path.ends_with("ca.pem") { 0o644 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
    let mut at = site.landing();
    for segment in ["s", "d", "m", "2024", "03", "31", "02"] {
        at.push(segment);
        assert_eq!(mode(&at), 0o755, "{}", at.display());
    }
    assert_eq!(mode(&at.join("a.parquet")), 0o644);
    for name in ["ledger.db", "identity.json", "spoke.toml"] {
        assert_eq!(mode(&Path::new(&spoke.state()).join(name)), 0o600, "{name}");
    }
    // No secret stands in what is not secret.
    let identity = fs::read_to_string(Path::new(&spoke.state()).join("identity.json")).unwrap();
    let key: serde_json::Value = serde_json::from_str(&identity).unwrap();
    let key = key["key"].as_str().unwrap();
    for file in [site.path().join("hub.log"), spoke.config()] {
        assert!(!fs::read_to_string(file).unwrap().contains(key));
    }
}
