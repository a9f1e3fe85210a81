//! Redis: one server that keeps an append-only file.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::folder::Folder;
use crate::process::Process;
use crate::{lifecycle, must, ports, programs, run};

#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// More settings, as on its command line without the dashes.
    pub settings: Vec<(String, String)>,
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// Its port; without it, a free one.
    pub port: Option<u16>,
}

#[derive(Debug)]
pub struct Redis {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    settings: Vec<(String, String)>,
    folder: Folder,
}

lifecycle!(Redis);

impl Redis {
    #[track_caller]
    pub fn start() -> Self {
        Redis::start_with(&RedisOptions::default())
    }

    #[track_caller]
    pub fn start_with(options: &RedisOptions) -> Self {
        must(Redis::open(options))
    }

    pub fn open(options: &RedisOptions) -> Result<Self> {
        programs::redis_server()?;
        ports::with_free(options.port, |port| {
            let folder = Folder::open("redis", options.data.as_deref())?;
            let process = Process::new("Redis", folder.path(), "log", libc::SIGTERM);
            let settings = options.settings.clone();
            let redis = Redis { process, port, settings, folder };
            redis.launch()?;
            Ok(redis)
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// One command through `redis-cli`, with its answer as that prints it.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> String {
        let ask = || {
            let mut command = Command::new(programs::redis_cli()?);
            command.args(["-e", "--raw", "-h", "127.0.0.1", "-p"]).arg(self.port.to_string());
            command.args(words);
            run::output(command)
        };
        must(ask()).trim_end_matches('\n').to_owned()
    }

    fn launch(&self) -> Result<()> {
        let mut command = Command::new(programs::redis_server()?);
        command.arg("--port").arg(self.port.to_string());
        command.args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"]);
        command.arg(self.folder.path());
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).arg(value);
        }
        self.process.launch(command, || self.answers())
    }

    fn answers(&self) -> Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        ensure!(answer == "+PONG\r\n", "Redis answers {answer:?}");
        Ok(())
    }
}
