//! The binary `barque`: arguments in, exit code out. Only here is anything printed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to people")]

mod args;
mod command;
mod config;
mod demo;
mod exit;
mod output;
mod sample;

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    // First thing: one TLS provider in the whole process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let _ = e.print();
            let code = if e.use_stderr() { exit::USAGE } else { exit::OK };
            return code.into();
        }
    };
    output::start_logging(&args.global, args.command.default_log_level());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let code = match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(run(args));
            runtime.shutdown_timeout(std::time::Duration::from_millis(200));
            code
        }
        Err(e) => {
            eprintln!("error: the asynchronous runtime cannot be started: {e}");
            exit::INTERNAL
        }
    };
    code.into()
}

async fn run(args: args::Args) -> u8 {
    let json = args.global.json;
    if !args.command.handles_signals() {
        // A task of its own, since a scan may keep this one busy for hours. Every write is made so
        // that the process may end at any point.
        tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(exit::INTERRUPTED.into());
            }
        });
    }
    match command::run(args).await {
        Ok(code) => code,
        Err(e) => {
            let code = exit::code_of(&e);
            output::error(&e, code, exit::word_of(&e), json);
            code
        }
    }
}
