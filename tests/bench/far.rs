//! Long, narrow and broken lines: Barque and others through the same one, beside a raw stream of the
//! same bytes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::first::push_at;
use crate::link::{Line, Link};
use crate::page::{Page, tell};
use crate::peer::{self, Rclone, Rsync};
use crate::process::{Hub, wait_for};
use crate::race::{Contender, Cost, median_of, race, table};
use crate::tree::Tree;

/// 100 ms and 50 Mbit/s.
pub fn narrow(page: &mut Page, files: u64, rounds: usize) {
    tell!(page, "\n{files} files of 16 KiB over a line of 100 ms and 50 Mbit/s\n");
    let line = Line {
        round_trip: Duration::from_millis(100),
        bits_per_second: Some(50e6),
        cut_every: None,
    };
    let standings = over(page, line, (files, 16 << 10), rounds);
    let raw = median_of(&standings, RAW);
    tell!(page, "Barque over the raw stream: {:.2}", standings[0].seconds.median() / raw);
}

/// 600 ms without a pace.
pub fn long(page: &mut Page, files: u64, rounds: usize) {
    tell!(page, "\n{files} files of 4 KiB over a line of 600 ms\n");
    let round_trip = Duration::from_millis(600);
    let line = Line { round_trip, bits_per_second: None, cut_every: None };
    let standings = over(page, line, (files, 4 << 10), rounds);
    let beyond = standings[0].seconds.median() - median_of(&standings, RAW);
    tell!(page, "round trips beyond the raw stream: {:.1}", beyond / round_trip.as_secs_f64());
}

const RAW: &str = "raw TCP";
/// On a longer line rclone takes a quarter of an hour: some four calls a file.
const RCLONE_FOLLOWS: Duration = Duration::from_millis(200);

fn over(
    page: &mut Page,
    line: Line,
    (files, size): (u64, usize),
    rounds: usize,
) -> Vec<crate::race::Standing> {
    let root = crate::process::folder();
    let root = std::fs::canonicalize(root.path()).unwrap();
    let tree = &Tree::make(&root.join("source"), files, size);
    let hub = &Hub::new(&root, 1);
    let rsync = peer::is_there("rsync").then(|| Rsync::start(&root, Some(line)));
    let follows = line.round_trip <= RCLONE_FOLLOWS && peer::is_there("rclone");
    let webdav = follows.then(|| Rclone::webdav(&root, Some(line)));
    let link = &Link::to(&hub.nodes[0].listen, line);
    let mut all = vec![Contender::new("Barque", rounds, |n| {
        push_at(hub, tree, &format!("s{n}"), Some(&link.address)).0
    })];
    if let Some(rsync) = &rsync {
        all.push(Contender::new("rsync", rounds, |n| rsync.push(tree, &format!("a-{n}"), &[])));
    }
    if let Some(webdav) = &webdav {
        let push = |n| webdav.push(tree, &format!("t-{n}"), 16);
        all.push(Contender::new("rclone WebDAV x16", 1, push));
    }
    all.push(Contender::new(RAW, rounds, |_| raw(tree, line)));
    let standings = race(all);
    tell!(page, "{}", table(&standings, files, tree.bytes()));
    standings
}

/// The bytes of the files over the line, until the other end says that it has all of them.
fn raw(tree: &Tree, line: Line) -> Cost {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&listener.local_addr().unwrap().to_string(), line);
    Cost::of(|| {
        let hearing = std::thread::spawn(move || {
            let (mut line, _) = listener.accept().unwrap();
            let bytes = std::io::copy(&mut line, &mut std::io::sink()).unwrap();
            line.write_all(b".").unwrap();
            bytes
        });
        let mut line = TcpStream::connect(&link.address).unwrap();
        for path in tree.paths() {
            std::io::copy(&mut File::open(path).unwrap(), &mut line).unwrap();
        }
        line.shutdown(Shutdown::Write).unwrap();
        line.read_exact(&mut [0]).unwrap();
        assert_eq!(hearing.join().unwrap(), tree.files * tree.size as u64);
    })
}

/// A line that is cut every five seconds: bytes that went up, over those of the same files on a line
/// that stays.
pub fn cuts(page: &mut Page, files: u64) {
    tell!(page, "\n{files} files of 64 KiB over a line of 20 Mbit/s that is cut every 5 s\n");
    let root = crate::process::folder();
    let tree = Tree::make(&root.path().join("source"), files, 64 << 10);
    let hub = Hub::new(root.path(), 1);
    let (_, whole) = bytes_up(&hub, &tree, "whole", None);
    let (passes, cut) = bytes_up(&hub, &tree, "cut", Some(Duration::from_secs(5)));
    tell!(
        page,
        "{passes} passes; bytes that went up over those of the files: {:.3}; over what goes up when \
         nothing is cut: {:.3}",
        cut / tree.bytes(),
        cut / whole
    );
}

/// Passes until a new spoke has sent all, and bytes that it sent, offers, headers and TLS with them.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn bytes_up(hub: &Hub, tree: &Tree, name: &str, cut_every: Option<Duration>) -> (u64, f64) {
    let round_trip = Duration::from_millis(20);
    let line = Line { round_trip, bits_per_second: Some(20e6), cut_every };
    let link = Link::to(&hub.nodes[0].listen, line);
    let spoke = hub.spoke_of(name, &std::fs::canonicalize(&tree.root).unwrap());
    spoke.call(&[&link.address]);
    let mut passes = 0;
    wait_for("all files are synced", || {
        passes += 1;
        spoke.pass().is_some_and(|r| r["left"] == 0)
    });
    (passes, link.bytes_up() as f64)
}
