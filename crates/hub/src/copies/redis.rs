//! A directory on Redis.
//!
//! ```text
//! potok:hub:<name>:nodes          sorted set: node → when its lease ends, milliseconds of Redis' clock
//! potok:hub:<name>:user:{<user>}  hash: node → milliseconds since when the user is there, or −milliseconds
//!                                 when their last connection broke; lives for an hour
//! potok:hub:<name>:inbox:{<user>} list: messages that the user may have missed, the oldest first:
//!                                 milliseconds, bytes, and the message as JSON; lives for `inbox_age`
//! potok:hub:<name>:marks:{<user>} hash: bytes of that list, and the moment behind which it is whole
//! potok:hub:<name>:epoch          run of the Redis server, and the moment behind which it has all
//!                                 that it was told
//! potok:hub:<name>:forgotten      there for a lease after somebody saw that everything was forgotten
//! potok:hub:<name>:key            the key that negotiations are signed with
//! potok:hub:<name>:denied         hash: user → seconds; tokens issued up to then are refused
//! potok:hub:<name>:to:<node>      channel of a node
//! ```
//!
//! All times are Redis' own: clocks of nodes differ. Everything here may be lost at any moment; the
//! nodes say it again. What users may have missed cannot be said again: where the server was flushed,
//! started anew or is another one (a promoted replica may lack the last messages), the epoch is a new
//! one, and nothing from before it is told. Redis is inside the trust boundary: who can write there can speak to anyone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{AsyncConnectionConfig, FromRedisValue, Pipeline, RedisError, RedisResult, Script};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::{Directory, Find, Lease, NodeId, Parcels, Presence, Whereabouts};
use crate::Frame;
use crate::contract::{Unavailable, UserId};
use crate::inbox;
use crate::settings::Limits;

/// Users in one call to Redis, and bytes of their messages, except where one alone has more. A call
/// has to be answered within [`ANSWER_WITHIN`], and a lease that is renewed waits behind those that
/// are under way.
const USERS_AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 1 << 20;
/// Users whom all calls that are under way may be about.
const USERS_UNDER_WAY: usize = 2 * USERS_AT_ONCE;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Entries of users live this long; nodes say them again every twenty minutes.
const USER_LIFE: Duration = Duration::from_secs(60 * 60);
/// Entries of dead nodes are removed when they are met, once they are older than this: a node that
/// just joined may not be known here yet.
const DEAD_ENTRY_AGE: Duration = Duration::from_secs(60);
/// A denial is of interest for so long: no token lives longer.
const DENIAL_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// `KEYS epoch; ARGV run of the server`: notes when a run is first seen, or everything was forgotten.
const BEGIN: &str = "\
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local epoch = redis.call('GET', KEYS[1])
if epoch and string.match(epoch, '^(%S+) ') == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', now))
return 1";

/// `KEYS user, inbox, marks; ARGV most messages, most bytes, milliseconds of life, then bytes and
/// message of each` → where the user is. Messages are kept first.
const FIND: &str = "\
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local number = function(value) return string.format('%.0f', value) end
if #ARGV > 3 then
  local most, room, life = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local count = redis.call('LLEN', KEYS[2])
  local bytes = tonumber(redis.call('HGET', KEYS[3], 'bytes') or 0)
  local whole = tonumber(redis.call('HGET', KEYS[3], 'whole') or now - life)
  local drop = function()
    local at, size = string.match(redis.call('LPOP', KEYS[2]), '^(%d+) (%d+) ')
    whole, bytes, count = math.max(whole, tonumber(at)), bytes - tonumber(size), count - 1
  end
  local is_old = function()
    return tonumber(string.match(redis.call('LINDEX', KEYS[2], 0), '^(%d+) ')) <= now - life
  end
  while count > 0 and is_old() do drop() end
  for place = 4, #ARGV, 2 do
    local size = tonumber(ARGV[place])
    local fits = most > 0 and size <= room
    while count > 0 and (not fits or bytes + size > room or count >= most) do drop() end
    if fits then
      redis.call('RPUSH', KEYS[2], number(now) .. ' ' .. ARGV[place] .. ' ' .. ARGV[place + 1])
      bytes, count = bytes + size, count + 1
    else
      whole = now
    end
  end
  redis.call('HSET', KEYS[3], 'bytes', number(bytes), 'whole', number(whole))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
return redis.call('HGETALL', KEYS[1])";

/// `KEYS nodes; ARGV node, milliseconds` → whether the lease was there, then all that are.
const RENEW: &str = "\
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
local kept = '0'
if ends and tonumber(ends) > now then kept = '1' end
local live = redis.call('ZRANGE', KEYS[1], 0, -1)
table.insert(live, 1, kept)
return live";

/// `KEYS user; ARGV node, here|lost|left, milliseconds of life`
const ANNOUNCE: &str = "\
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ARGV[2] == 'left' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
if ARGV[2] == 'lost' then now = -now end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now))
return redis.call('PEXPIRE', KEYS[1], ARGV[3])";

/// `KEYS user; ARGV node, milliseconds`: removes an entry, unless it was said anew.
const REMOVE: &str = "\
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])";

/// `KEYS denied; ARGV user, seconds`: the latest counts.
const DENY: &str = "\
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
if tonumber(ARGV[2]) > known then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return known";

static FIND_HASH: LazyLock<String> = LazyLock::new(|| Script::new(FIND).get_hash().to_owned());

/// In the first moments of an epoch nobody can be asked where users are: nodes that were there before
/// have not said it again.
const EPOCH_SETTLES: Duration = Duration::from_secs(2);

/// Nodes find each other on this Redis.
pub struct RedisDirectory {
    client: redis::Client,
    prefix: String,
    link: Mutex<Link>,
    /// Turns of calls that are about many users.
    under_way: Semaphore,
    /// Whether the log says already what the server does not allow.
    told: AtomicBool,
    /// The same of channels.
    told_of_channels: AtomicBool,
    /// The epoch when the lease was last renewed here.
    epoch: std::sync::Mutex<Option<String>>,
    /// Nodes that had a lease when it was last renewed here.
    live: std::sync::Mutex<Vec<NodeId>>,
}

#[derive(Default)]
struct Link {
    open: Option<Open>,
    opened: u64,
    /// When it could not be opened the last time.
    failed: Option<Instant>,
}

/// A connection, its number, and the run of the server behind it.
#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    number: u64,
    run: String,
}

impl RedisDirectory {
    /// Of the hub of that name; connects to nothing yet. One server, `redis://` or `rediss://`.
    /// The error does not repeat the address, which may hold a password.
    pub fn new(url: &str, hub: &str) -> Result<Self, String> {
        let client = redis::Client::open(url).map_err(|error| error.category().to_owned())?;
        let prefix = format!("potok:hub:{hub}:");
        Ok(RedisDirectory {
            client,
            prefix,
            link: Mutex::default(),
            under_way: Semaphore::new(USERS_UNDER_WAY),
            told: AtomicBool::new(false),
            told_of_channels: AtomicBool::new(false),
            epoch: Default::default(),
            live: Default::default(),
        })
    }

    fn user_key(&self, user: &UserId) -> String {
        self.key_of("user", user)
    }

    fn key_of(&self, what: &str, user: &UserId) -> String {
        // In a cluster the part in braces chooses the slot. A user's name may have braces itself;
        // its length keeps two of them apart that would look the same.
        let user = user.as_str();
        format!("{}{what}:{{{}:{}}}", self.prefix, user.len(), user.replace('}', "%7D"))
    }

    fn channel(&self, node: NodeId) -> String {
        format!("{}to:{node}", self.prefix)
    }

    /// One attempt; what went wrong on a connection ends it.
    async fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, Unavailable> {
        self.ask_since(Instant::now(), pipeline).await
    }

    /// The same for somebody who has waited for their turn since then.
    async fn ask_since<T: FromRedisValue>(
        &self,
        asked: Instant,
        pipeline: &Pipeline,
    ) -> Result<T, Unavailable> {
        self.attempt(asked, pipeline).await.map_err(|error| {
            tracing::debug!(error = error.category(), "the hub's Redis does not answer");
            Unavailable
        })
    }

    async fn attempt<T: FromRedisValue>(
        &self,
        asked: Instant,
        pipeline: &Pipeline,
    ) -> RedisResult<T> {
        let mut open = self.connection(asked).await?;
        let answer = timeout(ANSWER_WITHIN, pipeline.query_async(&mut open.connection)).await;
        let answer = answer.unwrap_or_else(|_| Err(too_late()));
        if answer.is_err() {
            let mut link = self.link.lock().await;
            // Another may have been opened since.
            link.open = link.open.take().filter(|other| other.number != open.number);
        }
        answer
    }

    async fn connection(&self, asked: Instant) -> RedisResult<Open> {
        let mut link = self.link.lock().await;
        if let Some(open) = &link.open {
            return Ok(open.clone());
        }
        // Somebody tried since we asked. All of them one after another would take seconds each where
        // the network swallows everything.
        if link.failed.is_some_and(|failed| failed >= asked) {
            return Err(too_late());
        }
        match self.connect().await {
            Ok((connection, run)) => {
                link.opened += 1;
                let open = Open { connection, number: link.opened, run };
                link.open = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                link.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    async fn connect(&self) -> RedisResult<(MultiplexedConnection, String)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection =
            timeout(CONNECT_WITHIN, connecting).await.unwrap_or_else(|_| Err(too_late()))?;
        let beginning = async {
            let run = self.run_of(&mut connection).await?;
            self.begin(&run).query_async::<()>(&mut connection).await?;
            Ok::<_, RedisError>(run)
        };
        // Before anything else is said or asked on it.
        let run = timeout(ANSWER_WITHIN, beginning).await.unwrap_or_else(|_| Err(too_late()))?;
        Ok((connection, run))
    }

    /// Which run of which server this is. Where that cannot be told, what it has may be less than
    /// what it was told, and nobody would know.
    async fn run_of(&self, connection: &mut MultiplexedConnection) -> RedisResult<String> {
        let info: RedisResult<String> =
            redis::cmd("INFO").arg("server").query_async(connection).await;
        let line = |info: &String| {
            let run = info.lines().find_map(|line| line.trim().strip_prefix("run_id:"));
            run.map(str::to_owned)
        };
        let is_refused = info.as_ref().err().is_some_and(is_refusal);
        let run = info.as_ref().ok().and_then(line);
        if (is_refused || (info.is_ok() && run.is_none()))
            && !self.told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the hub's Redis does not say which run of it this is (INFO server, run_id); its user needs +info"
            );
        }
        match (info, run) {
            (_, Some(run)) => Ok(run),
            (Err(error), None) => Err(error),
            (Ok(_), None) => Err(std::io::Error::other("no run_id").into()),
        }
    }

    /// As many users as one call is about.
    async fn find_some(
        &self,
        users: &[Find],
        limits: &Limits,
    ) -> Result<Vec<Whereabouts>, Unavailable> {
        let asked = Instant::now();
        let turn = self.under_way.acquire_many(users.len() as u32).await;
        let turn = turn.map_err(|_| Unavailable)?;
        let pipeline = self.finding(users, limits);
        let mut answers: Vec<redis::Value> = self.ask_since(asked, &pipeline).await?;
        drop(turn);
        let epoch: Option<String> = read(answers.pop().ok_or(Unavailable)?)?;
        if self.is_another(epoch.as_deref()) {
            // It knows nobody now; that is not to say that nobody is there.
            return Err(Unavailable);
        }
        let (seconds, micros): (i64, i64) = read(answers.remove(0))?;
        let now = seconds * 1000 + micros / 1000;
        let began = epoch.as_deref().and_then(|epoch| epoch.split_once(' ')?.1.parse::<i64>().ok());
        let settles = 0..EPOCH_SETTLES.as_millis() as i64;
        if began.is_none_or(|began| settles.contains(&(now - began))) {
            return Err(Unavailable);
        }
        let mut dead = redis::pipe();
        let mut all = Vec::with_capacity(users.len());
        for (Find { user, .. }, answer) in users.iter().zip(answers) {
            let entries: Vec<(String, i64)> = read(answer)?;
            let mut whereabouts = Whereabouts::default();
            for (node, since) in entries {
                let age = Duration::from_millis((now - since.abs()).max(0) as u64);
                let parsed = NodeId::parse(&node);
                if age > DEAD_ENTRY_AGE && !parsed.is_some_and(|node| self.is_live(node)) {
                    dead.cmd("EVAL").arg(REMOVE).arg(1).arg(self.user_key(user));
                    dead.arg(node).arg(since).ignore();
                } else if since < 0 {
                    whereabouts.lost = Some(whereabouts.lost.map_or(age, |lost| lost.min(age)));
                } else {
                    whereabouts.nodes.extend(parsed);
                }
            }
            all.push(whereabouts);
        }
        if !dead.is_empty() {
            // Met again where it fails.
            let _: Result<(), Unavailable> = self.ask(&dead).await;
        }
        Ok(all)
    }

    /// Keeps messages of users and looks for them.
    fn finding(&self, users: &[Find], limits: &Limits) -> Pipeline {
        let mut pipeline = redis::pipe();
        pipeline.cmd("TIME");
        // A message to many is written once.
        let mut written: HashMap<u64, Arc<str>> = HashMap::new();
        for (place, Find { user, frames }) in users.iter().enumerate() {
            // The server knows the text from the first call on.
            match place {
                0 => pipeline.cmd("EVAL").arg(FIND),
                _ => pipeline.cmd("EVALSHA").arg(FIND_HASH.as_str()),
            };
            pipeline.arg(3).arg(self.user_key(user));
            pipeline.arg(self.key_of("inbox", user)).arg(self.key_of("marks", user));
            pipeline.arg(limits.inbox_messages).arg(limits.inbox_bytes);
            pipeline.arg(limits.inbox_age.as_millis().max(1) as u64);
            let lasting = lasting(frames, limits);
            if lasting.len() < frames.len() {
                // One that does not fit: it empties the inbox, and that is noted.
                pipeline.arg(limits.inbox_bytes + 1).arg("");
            }
            for frame in lasting {
                let text = written.entry(frame.number());
                let text = text.or_insert_with(|| inbox::entry(frame).to_string().into());
                pipeline.arg(frame.bytes()).arg(&**text);
            }
        }
        // Behind the users: what was forgotten before they were looked for shows here.
        pipeline.cmd("GET").arg(self.epoch_key());
        pipeline
    }

    fn begin(&self, run: &str) -> Pipeline {
        let mut pipeline = redis::pipe();
        pipeline.cmd("EVAL").arg(BEGIN).arg(1).arg(self.epoch_key()).arg(run).ignore();
        pipeline
    }

    fn epoch_key(&self) -> String {
        format!("{}epoch", self.prefix)
    }

    /// Whether the server has forgotten something since the lease was last renewed, or is another.
    fn is_another(&self, epoch: Option<&str>) -> bool {
        self.epoch.lock().is_ok_and(|known| known.is_some() && known.as_deref() != epoch)
    }

    fn is_live(&self, node: NodeId) -> bool {
        self.live.lock().is_ok_and(|live| live.contains(&node))
    }
}

/// Those of a user's messages that will be left when all have been kept, one after another.
fn lasting<'a>(frames: &'a [Arc<Frame>], limits: &Limits) -> &'a [Arc<Frame>] {
    let mut bytes = 0;
    let fits = |frame: &&Arc<Frame>| {
        bytes += frame.bytes();
        bytes <= limits.inbox_bytes
    };
    let count = frames.iter().rev().take(limits.inbox_messages).take_while(fits).count();
    frames.get(frames.len() - count..).unwrap_or_default()
}

/// How many users, of these, one call is about.
fn at_once(users: &[Find], limits: &Limits) -> usize {
    let mut bytes = 0;
    let fits = |find: &&Find| {
        bytes += lasting(&find.frames, limits).iter().map(|frame| frame.bytes()).sum::<usize>();
        bytes <= BYTES_AT_ONCE
    };
    users.iter().take(USERS_AT_ONCE).take_while(fits).count().max(1)
}

/// Whether it is the user who may not do that.
fn is_refusal(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

fn too_late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

#[async_trait]
impl Directory for RedisDirectory {
    async fn renew(&self, node: NodeId, lease: Duration) -> Result<Lease, Unavailable> {
        let run = self.connection(Instant::now()).await.map_err(|_| Unavailable)?.run;
        // Everything may have been forgotten on the same connection.
        let mut pipeline = self.begin(&run);
        let nodes = format!("{}nodes", self.prefix);
        pipeline.cmd("EVAL").arg(RENEW).arg(1).arg(nodes);
        pipeline.arg(node.to_string()).arg(lease.as_millis() as u64);
        pipeline.cmd("GET").arg(self.epoch_key());
        let mark = format!("{}forgotten", self.prefix);
        pipeline.cmd("EXISTS").arg(&mark);
        let (answer, epoch, forgotten): (Vec<String>, Option<String>, bool) =
            self.ask(&pipeline).await?;
        let (kept, live) = answer.split_first().ok_or(Unavailable)?;
        let is_another = self.is_another(epoch.as_deref());
        if is_another {
            // For those who begin now, and cannot know it.
            let mut marking = redis::pipe();
            marking.cmd("SET").arg(mark).arg(1).arg("PX").arg(lease.as_millis() as u64).ignore();
            let () = self.ask(&marking).await?;
        }
        let kept = kept == "1" && !is_another;
        if let Ok(mut known) = self.epoch.lock() {
            *known = epoch;
        }
        let live: Vec<_> = live.iter().filter_map(|node| NodeId::parse(node)).collect();
        if let Ok(mut known) = self.live.lock() {
            known.clone_from(&live);
        }
        Ok(Lease { kept, forgotten, live })
    }

    async fn leave(&self, node: NodeId) -> Result<(), Unavailable> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZREM").arg(format!("{}nodes", self.prefix)).arg(node.to_string()).ignore();
        self.ask(&pipeline).await
    }

    async fn announce(
        &self,
        node: NodeId,
        users: &[(UserId, Presence)],
    ) -> Result<(), Unavailable> {
        let mut pipeline = redis::pipe();
        for (user, presence) in users {
            let presence = match presence {
                Presence::Here => "here",
                Presence::Lost => "lost",
                Presence::Left => "left",
            };
            pipeline.cmd("EVAL").arg(ANNOUNCE).arg(1).arg(self.user_key(user));
            pipeline.arg(node.to_string()).arg(presence).arg(USER_LIFE.as_millis() as u64).ignore();
        }
        self.ask(&pipeline).await
    }

    async fn find(&self, users: &[Find], limits: &Limits) -> Result<Vec<Whereabouts>, Unavailable> {
        let (mut all, mut rest) = (Vec::with_capacity(users.len()), users);
        while !rest.is_empty() {
            let some;
            (some, rest) = rest.split_at(at_once(rest, limits));
            all.extend(self.find_some(some, limits).await?);
        }
        Ok(all)
    }

    async fn since(
        &self,
        user: &UserId,
        last: &str,
        limits: &Limits,
    ) -> Result<Option<Vec<Value>>, Unavailable> {
        let mut pipeline = redis::pipe();
        // In this order: what is dropped meanwhile makes less of it whole, never more.
        pipeline.cmd("LRANGE").arg(self.key_of("inbox", user)).arg(0).arg(-1);
        pipeline.cmd("HGET").arg(self.key_of("marks", user)).arg("whole");
        pipeline.cmd("GET").arg(self.epoch_key());
        let (kept, whole, epoch): (Vec<String>, Option<u64>, Option<String>) =
            self.ask(&pipeline).await?;
        let epoch = epoch.as_deref().and_then(|epoch| epoch.split_once(' ')?.1.parse().ok());
        let (Some(whole), Some(epoch)) = (whole, epoch) else { return Ok(None) };
        let whole_after: u64 = whole.max(epoch);
        let read = |kept: &String| -> Option<(u64, Value)> {
            let mut parts = kept.splitn(3, ' ');
            let (at, _, message) = (parts.next()?, parts.next()?, parts.next()?);
            Some((at.parse().ok()?, serde_json::from_str(message).ok()?))
        };
        let Some(kept) = kept.iter().map(read).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let overlap = limits.resume_overlap.as_millis() as u64;
        Ok(inbox::missed(kept, last, |then| {
            then.checked_sub(overlap).filter(|cut| *cut > whole_after)
        }))
    }

    async fn cast(&self, parcels: &[(NodeId, Bytes)]) -> Result<Vec<bool>, Unavailable> {
        let mut pipeline = redis::pipe();
        for (node, parcel) in parcels {
            pipeline.cmd("PUBLISH").arg(self.channel(*node)).arg(&parcel[..]);
        }
        let listeners: Vec<u64> = self.ask(&pipeline).await?;
        Ok(listeners.into_iter().map(|count| count > 0).collect())
    }

    async fn listen(&self, node: NodeId) -> Result<Box<dyn Parcels>, Unavailable> {
        let subscribing = async {
            let mut line = self.client.get_async_pubsub().await?;
            line.subscribe(self.channel(node)).await?;
            Ok::<_, RedisError>(line.into_on_message())
        };
        let line = timeout(CONNECT_WITHIN, subscribing).await.unwrap_or_else(|_| Err(too_late()));
        match line {
            Ok(line) => Ok(Box::new(Line(line))),
            Err(error) => {
                if is_refusal(&error) && !self.told_of_channels.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the hub's Redis does not let this node listen; its user needs the channels &{}*",
                        self.prefix
                    );
                }
                tracing::debug!(error = error.category(), "the hub's Redis cannot be listened to");
                Err(Unavailable)
            }
        }
    }

    async fn negotiation_key(&self, proposal: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        let key = format!("{}key", self.prefix);
        let mut pipeline = redis::pipe();
        pipeline.cmd("SET").arg(&key).arg(&proposal[..]).arg("NX").ignore();
        pipeline.cmd("GET").arg(&key);
        let (kept,): (Vec<u8>,) = self.ask(&pipeline).await?;
        kept.try_into().map_err(|_| Unavailable)
    }

    async fn deny(&self, denials: &[(UserId, SystemTime)]) -> Result<(), Unavailable> {
        let key = format!("{}denied", self.prefix);
        for denials in denials.chunks(USERS_AT_ONCE) {
            let mut pipeline = redis::pipe();
            for (user, before) in denials {
                pipeline.cmd("EVAL").arg(DENY).arg(1).arg(&key);
                pipeline.arg(user.as_str()).arg(super::views::seconds(*before)).ignore();
            }
            let () = self.ask(&pipeline).await?;
        }
        Ok(())
    }

    async fn denials(&self) -> Result<Vec<(UserId, SystemTime)>, Unavailable> {
        let key = format!("{}denied", self.prefix);
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGETALL").arg(&key).cmd("TIME");
        let (all, (now, _)): (Vec<(String, u64)>, (u64, u64)) = self.ask(&pipeline).await?;
        let is_old = |before: u64| now.saturating_sub(before) > DENIAL_LIFE.as_secs();
        let mut old = redis::pipe();
        for (user, _) in all.iter().filter(|(_, before)| is_old(*before)) {
            old.cmd("HDEL").arg(&key).arg(user).ignore();
        }
        if !old.is_empty() {
            let _: Result<(), Unavailable> = self.ask(&old).await;
        }
        let kept = all.into_iter().filter(|(_, before)| !is_old(*before));
        Ok(kept
            .map(|(user, before)| (UserId::new(&user), UNIX_EPOCH + Duration::from_secs(before)))
            .collect())
    }
}

fn read<T: FromRedisValue>(value: redis::Value) -> Result<T, Unavailable> {
    redis::from_redis_value(value).map_err(|_| Unavailable)
}

struct Line(PubSubStream);

#[async_trait]
impl Parcels for Line {
    async fn next(&mut self) -> Option<Bytes> {
        let message = self.0.next().await?;
        Some(Bytes::copy_from_slice(message.get_payload_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one call is about is bounded, whatever is sent.
    #[test]
    fn many_users_and_large_messages_are_many_calls() {
        let frame = |bytes: usize| {
            let payload = format!("\"{}\"", "x".repeat(bytes));
            Frame::new("notify", "m", payload.as_bytes(), 1 << 20).unwrap()
        };
        let users = |count: usize, frames: Vec<Arc<Frame>>| -> Vec<Find> {
            let find = |n| Find { user: UserId::new(&format!("user-{n}")), frames: frames.clone() };
            (0..count).map(find).collect()
        };
        let limits = Limits::default();
        assert_eq!(at_once(&users(3, vec![frame(1)]), &limits), 3);
        assert_eq!(at_once(&users(20_000, vec![frame(1)]), &limits), USERS_AT_ONCE);
        assert_eq!(at_once(&users(20_000, vec![frame(50_000)]), &limits), BYTES_AT_ONCE / 50_000);
        // Of a user's messages those that an inbox has room for.
        let (small, large) = (frame(1), frame(50_000));
        let many: Vec<_> = (0..1_000).map(|_| small.clone()).collect();
        assert_eq!(lasting(&many, &limits).len(), limits.inbox_messages);
        let mixed = [small.clone(), large.clone(), large.clone(), small.clone()];
        assert_eq!(lasting(&mixed, &limits).len(), 2);
        assert_eq!(lasting(&[small.clone(), frame(100_000)], &limits).len(), 0);
        let none = Limits { inbox_messages: 0, ..Limits::default() };
        assert_eq!(lasting(&[small], &none).len(), 0);
        assert_eq!(at_once(&users(2, vec![frame(1_000_000); 3]), &limits), 2, "not kept at all");
        let roomy = Limits { inbox_bytes: 8 << 20, ..Limits::default() };
        assert_eq!(at_once(&users(2, vec![frame(1_000_000); 3]), &roomy), 1, "one goes alone");
    }

    #[test]
    fn two_users_never_share_a_key_or_leave_their_slot() {
        let directory = RedisDirectory::new("redis://127.0.0.1:1", "a").unwrap();
        let key = |user: &str| directory.user_key(&UserId::new(user));
        assert_eq!(key("alice"), "potok:hub:a:user:{5:alice}");
        assert_ne!(key("a}"), key("a%7D"));
        for user in ["", "}", "{}", "a}b{c", "5:alice"] {
            let key = key(user);
            assert_eq!(key.find('}'), Some(key.len() - 1), "{key}");
        }
        assert!(RedisDirectory::new("nonsense", "a").is_err());
    }
}
