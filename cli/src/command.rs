//! One file a verb.

mod bundle;
mod config;
mod enroll;
mod hub;
mod ledger;
mod passes;
mod push;
mod sample;
mod status;

use std::sync::Arc;

use barque_bundle::Timestamp;
use barque_spoke::{Edge, StateFolder};

use crate::args::{Args, Command, Global, StateArgs};
use crate::config::FileConfig;
use crate::demo;

/// What every verb gets beside its own arguments.
pub struct Context {
    pub global: Global,
    pub file: FileConfig,
}

impl Context {
    fn state(&self, args: &StateArgs) -> StateFolder {
        StateFolder::new(self.file.state(args.state.clone()))
    }
}

/// Runs the verb; the exit code of a run that ended as it should.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let file = FileConfig::load(args.global.config.as_deref())?;
    let context = Context { global: args.global, file };
    match args.command {
        Command::Push(args) => push::run(&context, &args).await,
        Command::Status(args) => status::run(&context, &args),
        Command::Passes(args) => passes::run(&context, &args),
        Command::Enroll(args) => enroll::run(&context, args).await,
        Command::Bundle { verb } => bundle::run(&context, verb).await,
        Command::Ledger { verb } => ledger::run(&context, verb),
        Command::Config { verb } => config::run(&context, verb),
        Command::Hub { verb } => hub::run(&context, verb).await,
        Command::Sample(args) => sample::run(&context, &args),
        Command::Demo(args) => demo::run(&context, &args).await,
    }
}

/// The real clock.
pub fn now() -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now())
}

/// The real clock and the system's randomness.
pub fn edge() -> Edge {
    Edge { clock: Arc::new(now), random: Arc::new(rand::random) }
}
