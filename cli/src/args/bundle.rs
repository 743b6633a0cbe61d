//! `barque bundle ...`: what can be typed.

use std::path::PathBuf;

use barque_bundle::open::Form;
use barque_bundle::{BundleId, ByteSize, HubId};
use barque_spoke::export::{DEFAULT_BYTES_MAX, DEFAULT_FILES_MAX};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::{DataArgs, StateArgs};

#[derive(Subcommand, Debug)]
pub enum BundleVerb {
    /// Write what waits to a drive as one signed bundle, read it back, and say when it is safe to
    /// remove the drive
    #[command(
        after_help = "Example:\n  barque bundle export /media/usb --label \"drive 7\" --state ./submarine\n  barque bundle export /media/usb --archive tar.zst --max-bytes 8GB --state ./submarine\n\nAfter a crash, a full or a pulled drive the same command goes on with the same bundle.\nThe files count as delivered once the hub's receipt is back: barque bundle ack."
    )]
    Export(BundleExportArgs),
    /// Check a bundle whole, on any machine: signature, entries, every file; name the first damage
    #[command(
        after_help = "Example:\n  barque bundle verify /media/usb/bundle-submarine-01-01HX... --state ./submarine\n  barque bundle verify b.tar.zst --key submarine-01.pub\n\nExit codes: 0 whole and signed, 5 damaged, 6 whole but no key to check the signature with."
    )]
    Verify(BundleVerifyArgs),
    /// List bundles under way, and with a folder what lies on that drive
    #[command(after_help = "Example:\n  barque bundle ls /media/usb --state ./submarine")]
    Ls(BundleLsArgs),
    /// Take the hub's receipts from a drive that came back: their files become synced
    #[command(after_help = "Example:\n  barque bundle ack /media/usb --state ./submarine")]
    Ack(BundleAckArgs),
    /// Take an exported bundle back, such as that of a lost drive: its files wait again
    #[command(
        after_help = "Example:\n  barque bundle ls --state ./submarine\n  barque bundle revert 01HX0000000000000000000000 --state ./submarine\n\nShould the drive turn up after all, importing it changes nothing and does no harm."
    )]
    Revert(BundleIdArgs),
    /// Give up an export that was not finished, and remove what it wrote
    #[command(
        after_help = "Example:\n  barque bundle rm 01HX0000000000000000000000 --state ./submarine"
    )]
    Rm(BundleIdArgs),
}

/// One file in place of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Archive {
    #[value(name = "tar")]
    Tar,
    #[value(name = "tar.zst")]
    TarZst,
}

impl Archive {
    pub fn form(archive: Option<Self>) -> Form {
        match archive {
            None => Form::Folder,
            Some(Self::Tar) => Form::Tar,
            Some(Self::TarZst) => Form::TarZst,
        }
    }
}

#[derive(ClapArgs, Debug)]
pub struct BundleExportArgs {
    /// The folder where the drive is mounted
    pub dir: PathBuf,
    #[command(flatten)]
    pub state: StateArgs,
    /// What is written on the drive, for people
    #[arg(long)]
    pub label: Option<String>,
    /// At most so many files
    #[arg(long, default_value_t = DEFAULT_FILES_MAX, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// At most so much, such as 8GB; at least one file goes
    #[arg(long, default_value_t = ByteSize(DEFAULT_BYTES_MAX), value_name = "SIZE")]
    pub max_bytes: ByteSize,
    /// Write one archive in place of a folder
    #[arg(long, value_name = "FORM")]
    pub archive: Option<Archive>,
    /// Do not read the bundle back
    #[arg(long)]
    pub no_verify: bool,
    /// Scan and say what would be exported; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Which hub it is for; needed when the spoke has several
    #[arg(long, value_name = "HUB_ID")]
    pub hub: Option<HubId>,
}

#[derive(ClapArgs, Debug)]
pub struct BundleVerifyArgs {
    /// A bundle: a folder, a .tar or a .tar.zst
    pub path: PathBuf,
    /// The state folder of the spoke that made it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data", "key"])]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataArgs,
    /// A file with the spoke's public key, as `barque hub spoke show` tells it
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub key: Option<PathBuf>,
    /// Without a key: let a whole bundle pass, its signature unchecked
    #[arg(long)]
    pub allow_unsigned: bool,
}

#[derive(ClapArgs, Debug)]
pub struct BundleLsArgs {
    /// A drive, or a bundle on it
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateArgs,
}

#[derive(ClapArgs, Debug)]
pub struct BundleAckArgs {
    /// A drive that came back, or one bundle on it
    pub path: PathBuf,
    #[command(flatten)]
    pub state: StateArgs,
}

#[derive(ClapArgs, Debug)]
pub struct BundleIdArgs {
    /// The bundle, as `barque bundle ls` names it
    pub id: BundleId,
    #[command(flatten)]
    pub state: StateArgs,
}
