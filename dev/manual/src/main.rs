//! Writes the manual pages and shell completions of all programs, from their command lines, and the
//! manual page of the daemon's config file, from the example that documents it.
//!
//! `cargo xtask man DIR` and `cargo xtask completions DIR` run it.
#![forbid(unsafe_code)]

mod completions;
mod config;
mod pages;
mod programs;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Write manual pages or shell completions of the programs
#[derive(Parser)]
struct Flags {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Manual pages, in DIR/man1, DIR/man5 and DIR/man8
    Man {
        /// Folder to write to; made if it is missing
        dir: PathBuf,
    },
    /// Shell completions, in DIR/bash, DIR/zsh and DIR/fish
    Completions {
        /// Folder to write to; made if it is missing
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let (dir, written) = match Flags::parse().what {
        What::Man { dir } => (dir.clone(), pages::write(&dir)),
        What::Completions { dir } => (dir.clone(), completions::write(&dir)),
    };
    match written {
        Ok(files) => {
            for file in files {
                println!("{}", file.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("manual: cannot write to {}: {error}", dir.display());
            ExitCode::from(2)
        }
    }
}
