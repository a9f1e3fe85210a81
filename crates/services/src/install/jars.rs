//! Apache Kafka from Maven into the cache, and the class data that halves its start.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use crate::cache::KAFKA_VERSION;
use crate::cache::{self, KafkaJars};
use crate::kafka::node::{CLUSTER, java_tool};
use crate::kafka::{Kafka, KafkaOptions};
use crate::{programs, run};

const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
/// The tools want all of Kafka Connect, which nobody here uses.
const UNUSED: [&str; 4] = ["connect-runtime", "connect-api", "connect-json", "connect-transforms"];

/// Fetches Kafka where it is not in the cache. Whole or not at all: it is put together beside its
/// place and renamed.
pub fn fetch(say: &dyn Fn(&str)) -> Result<()> {
    if KafkaJars::find().is_ok() {
        return Ok(());
    }
    say(&format!("fetching Apache Kafka {KAFKA_VERSION} (Maven, 44 MB)"));
    let cache = cache::folder()?;
    let whole = cache.join(format!("kafka-{KAFKA_VERSION}"));
    let part = cache.join(format!("kafka-{KAFKA_VERSION}.part"));
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    fs::create_dir_all(part.join("jars"))?;
    fs::write(part.join("pom.xml"), pom())?;
    let mut command = Command::new(programs::maven()?);
    command.args(["-B", "-q", COPY, "-DincludeScope=runtime", "-f"]).arg(part.join("pom.xml"));
    command.arg(format!("-DoutputDirectory={}", part.join("jars").display()));
    command.arg(format!("-Dmaven.repo.local={}", cache.join("m2").display()));
    if let Some(home) = java_home() {
        command.env("JAVA_HOME", home);
    }
    run::output(command).context("Maven cannot fetch Apache Kafka")?;
    format(&part)?;
    fs::rename(&part, &whole)?;
    Ok(())
}

/// Maven may not look for Java where we did.
pub fn java_home() -> Option<std::path::PathBuf> {
    let java = programs::java().ok()?.0.canonicalize().ok()?;
    Some(java.parent()?.parent()?.to_owned())
}

fn pom() -> String {
    let dependency = |group: &str, artifact: &str, version: &str, more: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version>{more}</dependency>\n"
        )
    };
    let kafka = "org.apache.kafka";
    let unused = UNUSED.map(|artifact| {
        format!(
            "<exclusion><groupId>{kafka}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        )
    });
    let unused = format!("<exclusions>{}</exclusions>", unused.concat());
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\n\
         <groupId>potok</groupId><artifactId>kafka</artifactId><version>1</version>\
         <packaging>pom</packaging>\n<dependencies>\n{}{}{}</dependencies></project>\n",
        dependency(kafka, "kafka_2.13", KAFKA_VERSION, ""),
        dependency(kafka, "kafka-tools", KAFKA_VERSION, &unused),
        dependency("org.slf4j", "slf4j-simple", "1.7.36", ""),
    )
}

/// Runs Kafka's own formatting once; nodes copy what it wrote. It also shows that the jars are
/// complete.
fn format(part: &Path) -> Result<()> {
    let formatted = part.join("formatted");
    let settings = part.join("server.properties");
    let text = format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n\
         listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n\
         controller.listener.names=CONTROLLER\nlog.dirs={}\n",
        formatted.display()
    );
    fs::write(&settings, text)?;
    let mut command = java_tool(&KafkaJars::open(part.to_owned())?)?;
    command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]).arg(&settings);
    run::output(command)?;
    let checkpoint = formatted.join("bootstrap.checkpoint");
    ensure!(checkpoint.is_file(), "Kafka's formatting did not write {}", checkpoint.display());
    Ok(())
}

/// Lets a broker note the classes it loads. Starts work without it, only slower, so that a failure
/// is no more than worth a word.
pub fn make_class_data(say: &dyn Fn(&str)) {
    if let Err(error) = class_data(say) {
        say(&format!("Kafka will start slowly: {error:#}"));
    }
}

fn class_data(say: &dyn Fn(&str)) -> Result<()> {
    let jars = KafkaJars::find()?;
    let whole = jars.class_data()?;
    if whole.is_file() {
        return Ok(());
    }
    say("preparing quick starts of Kafka (10 s)");
    let part = whole.with_extension("part");
    let java = vec![
        format!("-XX:ArchiveClassesAtExit={}", part.display()),
        "-Xlog:cds=off".to_owned(),
        "-Xlog:cds*=off".to_owned(),
    ];
    let kafka = Kafka::open_with_jars(&KafkaOptions { java, ..KafkaOptions::default() }, &jars)?;
    kafka.create_topic("prepared", 1, &[]);
    kafka.stop();
    ensure!(part.is_file(), "Java wrote no class data; its log:\n{}", kafka.logs());
    fs::rename(&part, &whole)?;
    Ok(())
}
