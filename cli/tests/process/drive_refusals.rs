//! What no drive may bring in: each damage and each lie has its own word, nothing of it becomes
//! visible, and the hub lives on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::drives::{Ended, ack, drive, exported, fill, import};
use crate::forge::{Forge, Member, member};
use crate::nodes::dump;
use crate::site::{Site, barque, run, tiny, tree, wait_for};
use crate::{lacks_shared, shared, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(every_lie_of_an_archive_is_refused_by_its_word_and_nothing_becomes_visible),
        trial!(every_damage_to_a_folder_is_refused_by_its_word),
        trial!(a_drive_of_a_stranger_is_refused),
        trial!(a_second_import_is_refused_at_once_while_one_runs),
        trial!(hostile_archives_from_elsewhere_are_refused, needs lacks_shared("cases/out/archives")),
        trial!(mutated_bundles_are_refused_and_named, needs lacks_mutations()),
    ]
}

/// Posts an archive to the hub's socket; status and code.
fn post(site: &Site, archive: &Path) -> (u16, String) {
    let output = Command::new("curl")
        .args(["-s", "-w", "\n%{http_code}", "--unix-socket"])
        .arg(site.path().join("hub/hub.sock"))
        .arg("-T")
        .arg(archive)
        .args(["-X", "POST", "http://localhost/api/v1/bundle-import"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    let problem: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    (status.parse().unwrap(), problem["code"].as_str().unwrap_or_default().to_owned())
}

fn nothing_is_visible(site: &Site, what: &str) {
    assert_eq!(tree(&site.landing()).len(), 0, "{what}");
    assert_eq!(site.manifest().len(), 0, "{what}");
}

/// One archive that is refused, and the word for it.
struct Case {
    name: String,
    bytes: Vec<u8>,
    code: &'static str,
}

fn case(name: impl Into<String>, code: &'static str, bytes: Vec<u8>) -> Case {
    Case { name: name.into(), bytes, code }
}

/// Lies of the header and the entries, signed by the spoke itself.
fn lies(genuine: &Forge) -> Vec<Case> {
    let header = |name: &str, code, key: &'static str, value: Value| {
        case(name, code, genuine.with(|f| f.header[key] = value).build())
    };
    let entries = |name: &str, code, change: &dyn Fn(&mut Vec<Value>)| {
        let forge = genuine.with(|f| {
            change(&mut f.entries);
            f.true_header();
        });
        case(name, code, forge.build())
    };
    let count = genuine.entries.len() as u64;
    let zeros = "0".repeat(64);
    let set = |key: &'static str, value: Value| move |e: &mut Vec<Value>| e[0][key] = value.clone();
    vec![
        header("a version of tomorrow", "unknown_version", "version", json!(3)),
        header("a critical name", "unknown_critical", "critical", json!(["parts"])),
        header("encrypted", "encrypted", "encryption", json!({"age": 1})),
        header("another hub", "wrong_hub", "hub_id", json!("01M8N2M8T80XVZ4QNNRFSBY6CE")),
        header("one too many is declared", "entries_mismatch", "entry_count", json!(count + 1)),
        header("one too few is declared", "entries_too_many", "entry_count", json!(count - 1)),
        header("endless files are declared", "too_many_entries", "entry_count", json!(u64::MAX)),
        header("fewer bytes are declared", "entries_mismatch", "total_bytes", json!(1)),
        header("another text", "entries_mismatch", "entries_sha256", json!(zeros)),
        header("another digest", "entries_mismatch", "entries_digest", json!(zeros)),
        header("numbers above the head", "entries_mismatch", "seq_head", json!(1)),
        header("a header without end", "member_too_large", "label", json!("x".repeat(1 << 20))),
        case(
            "no signature of the key",
            "bad_signature",
            genuine.with(|f| f.is_signed = false).build(),
        ),
        entries("backwards", "entries_out_of_order", &|e| e.reverse()),
        entries("one twice", "entries_out_of_order", &|e| e.insert(0, e[0].clone())),
        entries("up and away", "entries_malformed", &set("path", json!("../x.parquet"))),
        entries("absolute", "entries_malformed", &set("path", json!("/x.parquet"))),
        entries("not Parquet", "entries_malformed", &set("path", json!("a/x.sh"))),
        entries("stored elsewhere", "entries_malformed", &set("stored_as", json!("data/../x"))),
        entries("a size that is none", "entries_malformed", &set("size_bytes", json!(-1))),
        entries("sizes that overflow", "entries_mismatch", &|e| {
            e.iter_mut().for_each(|e| e["size_bytes"] = json!(u64::MAX / 2));
        }),
        entries("number nought", "entries_mismatch", &set("seq", json!(0))),
        entries("a line without end", "entries_malformed", &set("more", json!("x".repeat(20_000)))),
    ]
}

/// What is wrong with the files of a bundle whose head is genuine.
fn damages(genuine: &Forge) -> Vec<Case> {
    let files = |name: &str, code, change: &dyn Fn(&mut Vec<Member>)| {
        case(name, code, genuine.with(|f| change(&mut f.files)).build())
    };
    let first = genuine.files[0].name.clone();
    vec![
        files("one is missing", "member_missing", &|f| drop(f.remove(0))),
        files("the last is missing", "member_missing", &|f| drop(f.pop())),
        files("backwards", "member_out_of_order", &|f| f.reverse()),
        files("a bit has flipped", "member_damaged", &|f| f[1].bytes[20] ^= 1),
        files("one more", "undeclared_member", &|f| {
            f.push(member("data/d/extra.parquet", b"PAR1"))
        }),
        files("one beside", "undeclared_member", &|f| f.push(member("readme.txt", b"x"))),
        files("up", "path_escapes", &|f| f.push(member("../../ESCAPED.parquet", b"x"))),
        files("up inside", "path_escapes", &|f| f.insert(0, member("data/../../x.parquet", b"x"))),
        files("absolute", "path_escapes", &|f| f.push(member("/tmp/ESCAPED.parquet", b"x"))),
        files("backslashes", "path_escapes", &|f| f.push(member("data\\..\\x.parquet", b"x"))),
        files("the first again at the end", "duplicate_member", &|f| f.push(member(&first, b"x"))),
        files("the header again", "duplicate_member", &|f| f.push(member("manifest.json", b"{}"))),
        files("longer than declared", "member_size", &|f| f[0] = member(&first, &[0; 500])),
        files("shorter than declared", "member_size", &|f| f[0] = member(&first, b"x")),
        files("set-uid", "member_set_id", &|f| f[0].header.set_mode(0o4755)),
        files("two names", "names_disagree", &|f| {
            let name = f[0].name.clone();
            f[0].pax = vec![("path".into(), name)];
            f[0].name = "data/other.parquet".into();
        }),
        files("sparse by pax", "member_sparse", &|f| {
            f[0].pax = vec![("GNU.sparse.major".into(), "1".into())];
        }),
        files("withdrawn", "member_withdrawn", &|f| {
            f[0].pax = vec![("BARQUE.status".into(), "withdrawn".into())];
        }),
        case(
            "bytes behind the end",
            "bytes_behind_the_end",
            genuine.with(|f| f.tail = vec![7; 600]).build(),
        ),
        case(
            "endless zeros behind",
            "bytes_behind_the_end",
            genuine.with(|f| f.tail = vec![0; 3 << 20]).build(),
        ),
    ]
}

/// Kinds of members that are none, and archives that break off or never end.
fn kinds_and_ends(genuine: &Forge) -> Vec<Case> {
    let mut cases = Vec::new();

    for (kind, word) in [
        (tar::EntryType::Symlink, "a symbolic link"),
        (tar::EntryType::Link, "a hard link"),
        (tar::EntryType::Fifo, "a FIFO"),
        (tar::EntryType::Char, "a device"),
        (tar::EntryType::Block, "a block device"),
        (tar::EntryType::Directory, "a folder"),
        (tar::EntryType::GNUSparse, "a sparse file"),
    ] {
        let change = |f: &mut Vec<Member>| {
            f[0].bytes.clear();
            f[0].header.set_size(0);
            f[0].header.set_entry_type(kind);
        };
        let forged = genuine.with(|f| change(&mut f.files)).build();
        cases.push(case(word, "member_not_a_file", forged));
    }
    let mut preamble = genuine.preamble();
    preamble.remove(1);
    cases.push(case("no signature at all", "member_out_of_order", genuine.build_from(&preamble)));
    let whole = genuine.build();
    // A cut at a border loses members, one anywhere else the end of one.
    cases.push(case("cut in a file", "ends_early", whole[..whole.len() - 1024 - 300].to_vec()));
    cases.push(case("cut in the entries", "ends_early", whole[..2_200].to_vec()));
    let mut huge = tar::Header::new_ustar();
    huge.set_entry_type(tar::EntryType::XHeader);
    huge.set_size(1 << 40);
    huge.set_cksum();
    cases.push(case("an endless pax header", "member_too_large", huge.as_bytes().to_vec()));
    cases.push(case("an endless header", "member_too_large", {
        let mut m = tar::Header::new_ustar();
        m.set_path("manifest.json").unwrap();
        m.set_size(1 << 40);
        m.set_mode(0o644);
        m.set_cksum();
        m.as_bytes().to_vec()
    }));
    cases
}

fn every_lie_of_an_archive_is_refused_by_its_word_and_nothing_becomes_visible() {
    let site = Site::new();
    let mut hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 4);
    let archive = PathBuf::from(exported(&spoke, &drive(&site), &["--archive", "tar"]));
    // The same lines with their members in another order: signed for what they are now.
    let mut genuine = Forge::new(&spoke, &archive);
    genuine.true_header();
    let (state, at) = (spoke.state(), site.path().join("forged.tar"));
    let mut words = std::collections::BTreeSet::new();
    let all = [lies(&genuine), damages(&genuine), kinds_and_ends(&genuine)].into_iter().flatten();
    for Case { name, bytes, code } in all {
        fs::write(&at, bytes).unwrap();
        let path = at.display().to_string();
        let verified = Ended::of(&["bundle", "verify", &path, "--state", &state, "--json"]);
        assert_ne!(verified.code, 0, "{name}");
        let (status, posted) = post(&site, &at);
        assert_eq!(posted, code, "{name}: {status}");
        // A bundle that never gets to its head is called no bundle on the command line.
        let told = verified.json["code"].as_str().unwrap_or_default();
        assert!(told == code || told == "not_a_bundle", "{name}: {verified:?}");
        assert_ne!(import(&site, &path, &[]).code, 0, "{name}");
        nothing_is_visible(&site, &name);
        assert!(!hub.has_ended(), "{name}");
        words.insert(code);
    }
    assert!(words.len() >= 24, "{words:?}");
    // The same with zstd's window and frames: the compressed form of a lie is the same lie.
    let squeezed = site.path().join("lie.tar.zst");
    let flipped = genuine.with(|f| f.files[1].bytes[20] ^= 1).build();
    fs::write(&squeezed, zstd::encode_all(flipped.as_slice(), 3).unwrap()).unwrap();
    assert_eq!(post(&site, &squeezed).1, "member_damaged");
    let whole = zstd::encode_all(genuine.build().as_slice(), 3).unwrap();
    fs::write(&squeezed, &whole[..whole.len() - 20]).unwrap();
    assert_eq!(post(&site, &squeezed).1, "ends_early");
    nothing_is_visible(&site, "compressed");
    // Two frames with a skippable one between are one archive.
    let bytes = genuine.build();
    let (one, two) = bytes.split_at(900);
    let skip = [&0x184d_2a50_u32.to_le_bytes()[..], &4u32.to_le_bytes(), b"skip"].concat();
    let frames = [zstd::encode_all(one, 3).unwrap(), skip, zstd::encode_all(two, 3).unwrap()];
    fs::write(&squeezed, frames.concat()).unwrap();
    assert_eq!(post(&site, &squeezed).0, 202);
    let path = archive.display().to_string();
    crate::site::wait_for("it is imported", || {
        import(&site, &path, &[]).json["reason"] == "already imported"
    });
    assert_eq!(ack(&spoke, &archive.display().to_string()).code, 0);
    site.assert_landed(&[&spoke]);
}

fn every_damage_to_a_folder_is_refused_by_its_word() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 4);
    let genuine = PathBuf::from(exported(&spoke, &drive(&site), &[]));
    let file = "data/d/m/2024/03/01/01/f1.parquet";
    type Change = fn(&Path);
    let cases: [(&str, &str, Change); 14] = [
        ("damaged", "member_damaged", |p| {
            let mut bytes = fs::read(p).unwrap();
            bytes[30] ^= 1;
            fs::write(p, bytes).unwrap();
        }),
        ("zero length", "member_size", |p| fs::write(p, "").unwrap()),
        ("shorter", "member_size", |p| fs::write(p, "PAR1").unwrap()),
        ("missing", "member_missing", |p| fs::remove_file(p).unwrap()),
        ("a link", "member_not_a_file", |p| {
            fs::rename(p, p.with_extension("x")).unwrap();
            std::os::unix::fs::symlink(p.with_extension("x"), p).unwrap();
        }),
        ("a FIFO", "member_not_a_file", |p| {
            fs::remove_file(p).unwrap();
            assert!(Command::new("mkfifo").arg(p).status().unwrap().success());
        }),
        ("a folder", "member_missing", |p| {
            fs::remove_file(p).unwrap();
            fs::create_dir(p).unwrap();
        }),
        ("a folder that is a link", "member_not_a_file", |p| {
            let folder = p.parent().unwrap();
            fs::rename(folder, folder.with_extension("moved")).unwrap();
            std::os::unix::fs::symlink(folder.with_extension("moved"), folder).unwrap();
        }),
        ("one more in data", "undeclared_member", |p| {
            fs::write(p.with_file_name("more.parquet"), "x").unwrap();
        }),
        ("one more beside", "undeclared_member", |p| fs::write(top(p).join("x"), "x").unwrap()),
        ("no header", "member_missing", |p| fs::remove_file(top(p).join("manifest.json")).unwrap()),
        ("no signature", "bundle_unfinished", |p| {
            fs::remove_file(top(p).join("manifest.sig")).unwrap();
        }),
        ("no entries", "member_missing", |p| {
            fs::remove_file(top(p).join("entries.jsonl")).unwrap()
        }),
        ("an empty header", "header_malformed", |p| {
            fs::write(top(p).join("manifest.json"), "").unwrap();
        }),
    ];
    for (name, code, change) in cases {
        let copy = site.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        let copied = Command::new("cp").arg("-a").arg(&genuine).arg(&copy).status().unwrap();
        assert!(copied.success());
        change(&copy.join(file));
        let path = copy.display().to_string();
        let verified = Ended::of(&["bundle", "verify", &path, "--state", &spoke.state(), "--json"]);
        let told = verified.json["code"].as_str().unwrap_or_default();
        assert!(
            told == code || (code == "member_missing" && told == "member_not_a_file"),
            "{name}: {verified:?}"
        );
        let refused = import(&site, &path, &[]);
        assert_ne!(refused.code, 0, "{name}: {refused:?}");
        nothing_is_visible(&site, name);
    }
    // Another node need not wait for one that gave up.
    let claims = || dump(&site.data()).contains("import_claims: ");
    wait_for("no refused import keeps its claim", || !claims());
    let path = genuine.display().to_string();
    assert_eq!(import(&site, &path, &[]).code, 0);
    site.assert_landed(&[&spoke]);
}

/// The bundle's own folder, of a file deep in it.
fn top(file: &Path) -> &Path {
    file.ancestors().nth(8).unwrap()
}

fn a_drive_of_a_stranger_is_refused() {
    let (site, elsewhere) = (Site::new(), Site::new());
    let hub = site.hub();
    let address = hub.address.clone();
    let _other_hub = elsewhere.hub();
    let (spoke, stranger) = (site.spoke("s"), elsewhere.spoke("s"));
    fill(&spoke, 0, 2);
    fill(&stranger, 0, 2);
    let own = exported(&spoke, &drive(&site), &[]);
    let foreign = exported(&stranger, &drive(&elsewhere), &[]);
    let refused = import(&site, &foreign, &[]);
    assert_eq!(refused.code, 6, "{refused:?}");
    assert_eq!(import(&elsewhere, &own, &[]).code, 6);
    let disable = ["hub", "spoke", "disable", "s", "--data", &site.data()];
    assert_eq!(run(&disable).0, 0);
    let refused = import(&site, &own, &[]);
    assert!(refused.code == 6 && refused.stderr.contains("disabled"), "{refused:?}");
    assert_eq!(run(&["hub", "spoke", "enable", "s", "--data", &site.data()]).0, 0);
    // A key that is revoked while its spoke lives on.
    assert_eq!(hub.stop(), 0);
    let keys = |state: &str| {
        let c = rusqlite::Connection::open(site.path().join("hub/manifest.db")).unwrap();
        assert_eq!(c.execute("UPDATE keys SET state = ?1", [state]).unwrap(), 1);
    };
    keys("revoked");
    let hub = site.hub_with(&address, &[]);
    let refused = import(&site, &own, &[]);
    assert!(refused.code == 6 && refused.stderr.contains("revoked"), "{refused:?}");
    nothing_is_visible(&site, "revoked");
    assert_eq!(hub.stop(), 0);
    keys("active");
    let _hub = site.hub_with(&address, &[]);
    assert_eq!(import(&site, &own, &[]).code, 0);
    assert_eq!(run(&["hub", "spoke", "rm", "s", "--data", &site.data()]).0, 0);
    fill(&spoke, 2, 3);
    let late = exported(&spoke, &drive(&site), &[]);
    assert_eq!(import(&site, &late, &[]).code, 6);
}

fn a_second_import_is_refused_at_once_while_one_runs() {
    use std::io::Write as _;
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 3);
    let drive = drive(&site);
    let first = exported(&spoke, &drive, &["--archive", "tar"]);
    fill(&spoke, 3, 6);
    let second = exported(&spoke, &drive, &[]);
    // Half of the first drive, and then a reader that has to wait.
    let bytes = fs::read(&first).unwrap();
    let socket = site.path().join("hub/hub.sock");
    let mut slow = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let head = format!(
        "POST /api/v1/bundle-import HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        bytes.len()
    );
    slow.write_all(head.as_bytes()).unwrap();
    slow.write_all(&bytes[..bytes.len() - 3_000]).unwrap();
    crate::site::wait_for("the import is under way", || {
        import(&site, &second, &[]).json["reason"] == "import in progress"
    });
    let refused = import(&site, &second, &[]);
    assert_eq!(refused.code, 75, "{refused:?}");
    let id = Path::new(&first)
        .file_stem()
        .unwrap()
        .to_string_lossy()
        .rsplit('-')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(refused.json["bundle_id"], id.as_str());
    assert!(refused.json["job"].is_string() && refused.json["since"].is_string(), "{refused:?}");
    // The rest of it comes, and then the second.
    slow.write_all(&bytes[bytes.len() - 3_000..]).unwrap();
    crate::site::wait_for("the second is taken", || import(&site, &second, &[]).code == 0);
    site.assert_landed(&[&spoke]);
}

fn hostile_archives_from_elsewhere_are_refused() {
    let site = Site::new();
    let mut hub = site.hub();
    let _spoke = site.spoke("s");
    let mut seen = 0;
    for item in fs::read_dir(shared("cases/out/archives")).unwrap() {
        let path = item.unwrap().path();
        let (status, code) = post(&site, &path);
        assert!((400..500).contains(&status), "{path:?}: {status} {code}");
        let name = path.display().to_string();
        let mut command = barque(&["bundle", "verify", &name, "--allow-unsigned"]);
        assert_ne!(Ended::of_command(&mut command).code, 0, "{path:?}");
        assert_ne!(import(&site, &name, &[]).code, 0, "{path:?}");
        assert!(!hub.has_ended(), "{path:?}");
        seen += 1;
    }
    assert!(seen >= 15);
    nothing_is_visible(&site, "archives from elsewhere");
    let escaped =
        Command::new("find").args(["/tmp", "-maxdepth", "3", "-name", "ESCAPED*"]).output();
    assert_eq!(escaped.unwrap().stdout, b"");
    let peak = crate::memory::peak_kib(hub.pid()).unwrap();
    assert!(peak < 128 * 1024, "{peak} KiB");
}

fn lacks_mutations() -> Option<String> {
    let script = lacks_shared("cases/gen_cases.py");
    let python = Command::new("python3").args(["-c", "import pyarrow"]).output();
    let has_pyarrow = python.is_ok_and(|o| o.status.success());
    let has_zstd = Command::new("zstd").arg("--version").output().is_ok_and(|o| o.status.success());
    script
        .or_else(|| (!has_pyarrow).then(|| "needs python3 with pyarrow".to_owned()))
        .or_else(|| (!has_zstd).then(|| "needs the zstd command".to_owned()))
}

fn mutated_bundles_are_refused_and_named() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 6);
    let long = format!("d/{}/2024/03/01/00/x.parquet", "m".repeat(120));
    spoke.put(&long, &tiny(50));
    for form in ["tar", "tar.zst"] {
        let archive = exported(&spoke, &drive(&site), &["--archive", form]);
        for (kind, word) in [
            ("extra-file", "unsigned_extra.parquet"),
            ("dotdot", "ESCAPED.parquet"),
            ("symlink-parent", "a symbolic link"),
            ("duplicate-after", "twice"),
            ("drop-one", "missing"),
            ("flip-byte", "damaged"),
            ("reverse-order", "out of order"),
            ("truncate", "ends early"),
        ] {
            let mutated = site.path().join(format!("{kind}.{form}")).display().to_string();
            let made = Command::new("python3")
                .arg(shared("cases/gen_cases.py"))
                .args(["mutate", kind, &archive, &mutated])
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
            for args in [
                vec!["bundle", "verify", &mutated, "--state", &spoke.state()],
                vec!["hub", "import", &mutated, "--data", &site.data()],
            ] {
                let (code, _, err) = run(&args);
                assert!(code != 0 && err.contains(word), "{kind} {form} {args:?}: {code} {err}");
            }
            let (status, _) = post(&site, Path::new(&mutated));
            assert!((400..500).contains(&status), "{kind} {form}");
            nothing_is_visible(&site, kind);
        }
        // The same rewritten by that tool and not damaged is read: GNU long names too.
        let id = archive.rsplit('-').next().unwrap().trim_end_matches(form).trim_end_matches('.');
        run(&["bundle", "revert", id, "--state", &spoke.state()]);
    }
}
