//! The real services: installed for the tests, or started for a person to play with.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Subcommand;
use potok_services::install::{Service, ensure};
use potok_services::{
    Interrupt, Kafka, KafkaOptions, Keycloak, KeycloakOptions, Mariadb, MariadbOptions, Postgres,
    PostgresOptions, Redis, RedisOptions, port_is_free,
};

#[derive(Subcommand)]
pub enum ServicesCommand {
    /// Install what is missing on this machine; done by `cargo xtask test` as well
    Install {
        /// Some of kafka, postgres, mariadb, redis, keycloak, node, chromium; without a name, all
        #[arg(value_name = "SERVICE")]
        services: Vec<Service>,
    },
    /// Start them, print the variables that point potok at them, stop them at Ctrl-C
    Up {
        /// Some of kafka, postgres, mariadb, redis, keycloak; without a name, the first four
        #[arg(value_name = "SERVICE")]
        services: Vec<Service>,
        /// Keep their data here for the next time
        #[arg(long, value_name = "FOLDER")]
        data_dir: Option<PathBuf>,
    },
}

pub fn run(command: ServicesCommand) -> Result<()> {
    match command {
        ServicesCommand::Install { services } => {
            install(&chosen(services, &Service::ALL))?;
            eprintln!("xtask: the services are here");
            Ok(())
        }
        ServicesCommand::Up { services, data_dir } => {
            up(&chosen(services, &PIPELINES), data_dir.as_deref())
        }
    }
}

/// Everything the tests start.
pub fn install_all() -> Result<()> {
    install(&Service::ALL)
}

fn install(services: &[Service]) -> Result<()> {
    ensure(services, &|what| eprintln!("xtask: {what}"))
}

/// What pipelines run on.
const PIPELINES: [Service; 4] =
    [Service::Kafka, Service::Postgres, Service::Mariadb, Service::Redis];

fn chosen(named: Vec<Service>, otherwise: &[Service]) -> Vec<Service> {
    if named.is_empty() { otherwise.to_vec() } else { named }
}

fn up(services: &[Service], data: Option<&Path>) -> Result<()> {
    // Before any thread is there: from here on, Ctrl-C waits until it is asked for.
    let interrupt = Interrupt::prepare()?;
    install(services)?;
    let mut running = Vec::new();
    for service in services {
        eprintln!("xtask: starting {}", service.name());
        running.push(Running::start(*service, data)?);
    }
    eprintln!("xtask: running; paste these into another terminal:\n");
    for line in lines(&running) {
        println!("{line}");
    }
    eprintln!();
    for service in &running {
        eprintln!("xtask: data in {}", service.folder().display());
    }
    match data {
        Some(_) => eprintln!("xtask: Ctrl-C stops them and keeps the data"),
        None => eprintln!("xtask: Ctrl-C stops them and removes the data (kept with --data-dir)"),
    }
    interrupt.wait()?;
    eprintln!("xtask: stopping");
    running.iter().for_each(Running::stop);
    Ok(())
}

enum Running {
    Kafka(Kafka),
    Postgres(Postgres),
    Mariadb(Mariadb),
    Redis(Redis),
    Keycloak(Keycloak),
}

impl Running {
    /// Starts it on the port everyone knows, where that is free.
    fn start(service: Service, data: Option<&Path>) -> Result<Self> {
        let data = data.map(|folder| folder.join(service.name()));
        let known = |port: u16| port_is_free(port).then_some(port);
        Ok(match service {
            Service::Kafka => Running::Kafka(Kafka::open(&KafkaOptions {
                data,
                port: known(9092),
                ..KafkaOptions::default()
            })?),
            Service::Postgres => Running::Postgres(Postgres::open(&PostgresOptions {
                data,
                port: known(5432),
                ..PostgresOptions::default()
            })?),
            Service::Mariadb => Running::Mariadb(Mariadb::open(&MariadbOptions {
                data,
                port: known(3306),
                ..MariadbOptions::default()
            })?),
            Service::Redis => Running::Redis(Redis::open(&RedisOptions {
                data,
                port: known(6379),
                ..RedisOptions::default()
            })?),
            Service::Keycloak => {
                Running::Keycloak(Keycloak::open(&KeycloakOptions { data, port: known(8180) })?)
            }
            Service::Node | Service::Chromium => {
                bail!("{} is installed for tests; there is nothing to start", service.name())
            }
        })
    }

    fn folder(&self) -> &Path {
        match self {
            Running::Kafka(kafka) => kafka.folder(),
            Running::Postgres(postgres) => postgres.folder(),
            Running::Mariadb(mariadb) => mariadb.folder(),
            Running::Redis(redis) => redis.folder(),
            Running::Keycloak(keycloak) => keycloak.folder(),
        }
    }

    fn stop(&self) {
        match self {
            Running::Kafka(kafka) => kafka.stop(),
            Running::Postgres(postgres) => postgres.stop(),
            Running::Mariadb(mariadb) => mariadb.stop(),
            Running::Redis(redis) => redis.stop(),
            Running::Keycloak(keycloak) => keycloak.stop(),
        }
    }
}

/// What to paste. The orders go to one database: the second one offered is a comment.
fn lines(running: &[Running]) -> Vec<String> {
    let mut orders = 0;
    let mut database = |url: String| {
        orders += 1;
        let instead = if orders > 1 { "# or: " } else { "" };
        format!("{instead}export POTOK_DB_ORDERS={url}")
    };
    let mut line = |service: &Running| match service {
        Running::Kafka(kafka) => format!("export POTOK_LOG=kafka://{}", kafka.servers()),
        Running::Postgres(postgres) => database(postgres.url()),
        Running::Mariadb(mariadb) => database(mariadb.url()),
        Running::Redis(redis) => format!("export POTOK_STORE={}", redis.url()),
        Running::Keycloak(keycloak) => format!(
            "export POTOK_AUTH_ISSUER={} POTOK_AUTH_AUDIENCE={}  # users alice, bob; passwords with -pw",
            keycloak.issuer(),
            keycloak.audience()
        ),
    };
    running.iter().map(&mut line).collect()
}
