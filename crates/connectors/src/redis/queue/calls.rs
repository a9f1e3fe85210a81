//! The scripts as functions. One call is one attempt, and each may be made twice.

use std::time::Duration;

use bytes::Bytes;
use potok_core::Fault;

use super::super::client::{RedisClient, ScriptCall};
use super::super::scripts::Script;
use super::answer::AnswerParts;
use super::feed::QueueOptions;
use super::keys::SortedEntries;
use super::scripts::QueueScripts;

/// What is looked at in one go, and sorted in one script.
const PEEK_ENTRIES: usize = 500;
const PEEK_BYTES: usize = 1 << 20;

/// Chats looked at in one script.
const VISIT_CHATS: usize = 200;

/// How many claims one script acknowledges, renews or gives back.
const CLAIMS_MAX: usize = 200;

/// A limit where the pipeline sets none: what is handed over in one piece fits into memory.
const COUNT_MAX: u64 = 10_000;
const BYTES_MAX: u64 = 64 << 20;

/// The scripts of one list.
pub(super) struct QueueCalls {
    pub client: RedisClient,
    scripts: QueueScripts,
    list: String,
    /// What our own keys begin with.
    prefix: String,
    limits: ClosingLimits,
}

/// When chats close, in the units of the scripts.
struct ClosingLimits {
    quiet: u64,
    max_age: u64,
    max_count: u64,
    max_bytes: u64,
    lease: u64,
    longest: u64,
    waiting_max: u64,
}

/// The head of the list.
pub(super) struct ListHead {
    /// The server's clock, in microseconds.
    pub now: u64,
    pub entries: Vec<Bytes>,
}

/// What came of sorting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SortOutcome {
    /// Done; the next look, from now on.
    Done { next: Option<Duration> },
    /// Somebody else was faster.
    Moved,
    /// Another program holds the processor lock; true where it has no end.
    Locked { endless: bool },
    /// As many chats wait as may.
    Full,
}

/// What one round of looks found.
pub(super) struct Visit {
    /// When to look again, from now on; `None` where nothing waits.
    pub next: Option<Duration>,
    /// The nonce of this data.
    pub epoch: Bytes,
    /// Chats that another program took.
    pub handed_over: u64,
    /// Chats that nobody had.
    pub adopted: u64,
    /// Locks without an end that were overwritten.
    pub endless: u64,
    /// Chats whose list is no list.
    pub wrong: Vec<Bytes>,
    pub claims: Vec<ClaimAnswer>,
}

/// A claim as the server told it.
pub(super) struct ClaimAnswer {
    pub key: Bytes,
    /// Microseconds.
    pub opened: u64,
    pub nonce: String,
    /// Microseconds.
    pub closed: u64,
    pub reason: String,
    pub takeovers: u64,
    /// At which of its messages owners died that tried them alone, and how often.
    pub deaths: Vec<(u64, u32)>,
    pub entries: Vec<Bytes>,
}

/// A claim by what it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimToken {
    pub key: Bytes,
    pub token: String,
}

/// What the scripts know of one chat, for people.
pub(super) struct ChatAnswer {
    pub key: Bytes,
    /// When it closes, in microseconds; `None` where that is not ours to say.
    pub due: Option<u64>,
    pub opened: Option<u64>,
    pub nonce: String,
    pub is_foreign: bool,
    pub claim: Option<ClaimNote>,
    pub entries: u64,
    pub sending: u64,
}

/// The claim in a [`ChatAnswer`].
pub(super) struct ClaimNote {
    pub token: String,
    pub opened: u64,
    pub nonce: String,
    pub closed: u64,
    pub reason: String,
    pub takeovers: u64,
}

impl QueueCalls {
    pub fn new(client: RedisClient, options: &QueueOptions) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX >> 11);
        let longest = options.max_age.max(options.quiet_longest()).max(options.lease);
        let longest = longest.max(Duration::from_secs(60)) + options.quiet_longest();
        let limits = ClosingLimits {
            quiet: micros(options.quiet),
            max_age: micros(options.max_age),
            max_count: options.max_count.map_or(COUNT_MAX, u64::from).min(COUNT_MAX),
            max_bytes: options.max_bytes.unwrap_or(BYTES_MAX).min(BYTES_MAX),
            lease: micros(options.lease),
            longest: micros(longest + Duration::from_secs(60)),
            waiting_max: options.waiting_max,
        };
        let prefix = format!("potok:list:{}:", options.list);
        QueueCalls {
            client,
            scripts: QueueScripts::new(),
            list: options.list.clone(),
            prefix,
            limits,
        }
    }

    /// Entries from so many bytes on reach the limit of bytes before that of the count.
    pub fn large(&self) -> u64 {
        self.limits.max_bytes / self.limits.max_count.max(1)
    }

    fn begin<'a>(&self, script: &'a Script) -> ScriptCall<'a> {
        let mut call = ScriptCall::new(script, &self.list);
        call.push(self.prefix.as_bytes());
        call
    }

    pub async fn peek(&self) -> Result<ListHead, Fault> {
        let mut call = self.begin(&self.scripts.peek);
        call.show(PEEK_ENTRIES);
        call.show(PEEK_BYTES);
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        Ok(ListHead { now: answer.number()?, entries: answer.parts()?.all_bytes()? })
    }

    /// Files the entries that were seen; with none, only holds the processor lock.
    pub async fn sort(
        &self,
        entries: &[Bytes],
        sorted: &SortedEntries,
        seen_at: &str,
        nonce: &str,
        force: bool,
    ) -> Result<SortOutcome, Fault> {
        let limits = &self.limits;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX >> 11);
        let mut call = self.begin(&self.scripts.sort);
        call.push(seen_at.as_bytes());
        call.push(nonce.as_bytes());
        call.show(limits.max_count);
        call.show(limits.max_bytes);
        call.show(limits.max_age);
        call.show(limits.waiting_max);
        call.show(u8::from(force));
        call.show(entries.len());
        entries.iter().for_each(|entry| call.push(entry));
        call.show(sorted.chats.len());
        for chat in &sorted.chats {
            call.push(&chat.key);
            call.show(micros(chat.quiet));
            call.show(chat.bytes);
            call.show(chat.places.len());
        }
        sorted.chats.iter().flat_map(|chat| &chat.places).for_each(|place| call.show(place));
        call.show(sorted.bad.len());
        sorted.bad.iter().for_each(|place| call.show(place));
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        Ok(match answer.text()?.as_str() {
            "ok" => {
                let (now, next) = (answer.number()?, answer.number_or_none()?);
                SortOutcome::Done { next: next.map(|next| from_now(now, next)) }
            }
            "moved" => SortOutcome::Moved,
            "full" => SortOutcome::Full,
            _ => SortOutcome::Locked { endless: answer.text()? == "-1" },
        })
    }

    /// Looks at the chats whose time has come, up to so many bytes.
    pub async fn visit(
        &self,
        token: &str,
        nonce: &str,
        room: usize,
        epoch: &str,
    ) -> Result<Visit, Fault> {
        let limits = &self.limits;
        let mut call = self.begin(&self.scripts.visit);
        call.push(token.as_bytes());
        call.push(nonce.as_bytes());
        call.show(VISIT_CHATS);
        call.show(room);
        call.show(limits.lease);
        call.show(limits.quiet);
        call.show(limits.max_age);
        call.show(limits.max_count);
        call.show(limits.max_bytes);
        call.show(limits.longest);
        call.push(epoch.as_bytes());
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        let (now, next) = (answer.number()?, answer.number_or_none()?);
        let epoch = answer.bytes()?;
        let mut counts = answer.parts()?;
        let (handed_over, adopted) = (counts.number()?, counts.number()?);
        let endless = counts.number()?;
        let wrong = answer.parts()?.all_bytes()?;
        let claims =
            answer.parts()?.all_parts()?.into_iter().map(claim_answer).collect::<Result<_, _>>()?;
        let next = next.map(|next| from_now(now, next));
        Ok(Visit { next, epoch, handed_over, adopted, endless, wrong, claims })
    }

    /// Removes what was claimed. For each claim whether it was that token's, and whether there is something to
    /// look at now.
    pub async fn acknowledge(&self, held: &[ClaimToken]) -> Result<(Vec<bool>, bool), Fault> {
        let (mut ours, mut again) = (Vec::with_capacity(held.len()), false);
        for part in held.chunks(CLAIMS_MAX) {
            let mut call = self.begin(&self.scripts.ack);
            show_all(&mut call, part);
            let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
            ours.extend(answer.parts()?.all_flags());
            again |= answer.number()? == 1;
        }
        Ok((ours, again))
    }

    /// For each claim whether it is ours still; its lease begins anew.
    pub async fn renew(&self, held: &[ClaimToken]) -> Result<Vec<bool>, Fault> {
        let mut ours = Vec::with_capacity(held.len());
        for part in held.chunks(CLAIMS_MAX) {
            let mut call = self.begin(&self.scripts.renew);
            call.show(self.limits.lease);
            show_all(&mut call, part);
            ours.extend(AnswerParts::of(self.client.run(&call).await?)?.all_flags());
        }
        Ok(ours)
    }

    /// Lets whoever looks next have them.
    pub async fn give_back(&self, held: &[ClaimToken]) -> Result<(), Fault> {
        for part in held.chunks(CLAIMS_MAX) {
            let mut call = self.begin(&self.scripts.give_back);
            show_all(&mut call, part);
            self.client.run(&call).await?;
        }
        Ok(())
    }

    /// Notes in a claim which of its messages is tried alone.
    pub async fn trying(&self, held: &ClaimToken, offset: Option<u64>) -> Result<(), Fault> {
        let mut call = self.begin(&self.scripts.trying);
        call.push(&held.key);
        call.push(held.token.as_bytes());
        match offset {
            Some(offset) => call.show(offset),
            None => call.push(b"-"),
        }
        self.client.run(&call).await?;
        Ok(())
    }

    /// Closes one opening of a chat for that reason; what the server says to it.
    pub async fn wish(&self, key: &[u8], nonce: &str, reason: &str) -> Result<Bytes, Fault> {
        let mut call = self.begin(&self.scripts.wish);
        call.push(key);
        call.push(nonce.as_bytes());
        call.push(reason.as_bytes());
        super::answer::bytes(self.client.run(&call).await?)
    }

    /// Looks for lists that nobody will look at, page by page; the next cursor, and how many.
    pub async fn scan(&self, cursor: &str) -> Result<(String, u64), Fault> {
        let mut call = self.begin(&self.scripts.scan);
        call.push(cursor.as_bytes());
        call.show(self.limits.lease);
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        Ok((answer.text()?, answer.number()?))
    }

    /// Entries that wait, and chats they are in.
    pub async fn backlog(&self) -> Result<(u64, u64), Fault> {
        let call = self.begin(&self.scripts.backlog);
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        Ok((answer.number()?, answer.number()?))
    }

    /// Some chats in the order of their next look, or the one that is asked for; how many there are.
    pub async fn chats(
        &self,
        skip: u64,
        most: usize,
        asked: &[u8],
    ) -> Result<(u64, Vec<ChatAnswer>), Fault> {
        let mut call = self.begin(&self.scripts.groups);
        call.show(self.limits.max_age);
        call.push(b"-inf");
        call.show(skip);
        call.show(most);
        call.push(asked);
        let mut answer = AnswerParts::of(self.client.run(&call).await?)?;
        let (_now, total) = (answer.number()?, answer.number()?);
        let chats = answer.parts()?.all_parts()?.into_iter().map(chat_answer);
        Ok((total, chats.collect::<Result<_, _>>()?))
    }

    /// Puts a name under a key that has none; who has it.
    pub async fn register(&self, key: &str, own: &str) -> Result<String, Fault> {
        let mut call = self.begin(&self.scripts.register);
        call.push(key.as_bytes());
        call.push(own.as_bytes());
        let answer = super::answer::bytes(self.client.run(&call).await?)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn from_now(now: u64, then: u64) -> Duration {
    Duration::from_micros(then.saturating_sub(now))
}

fn show_all(call: &mut ScriptCall<'_>, held: &[ClaimToken]) {
    call.show(held.len());
    for ClaimToken { key, token } in held {
        call.push(key);
        call.push(token.as_bytes());
    }
}

fn claim_answer(mut answer: AnswerParts) -> Result<ClaimAnswer, Fault> {
    Ok(ClaimAnswer {
        key: answer.bytes()?,
        opened: answer.number()?,
        nonce: answer.text()?,
        closed: answer.number()?,
        reason: answer.text()?,
        takeovers: answer.number()?,
        deaths: deaths(&answer.text()?),
        entries: answer.parts()?.all_bytes()?,
    })
}

/// What is not written as it should be is left out: it is a help, nothing depends on it.
fn deaths(text: &str) -> Vec<(u64, u32)> {
    let one = |pair: &str| {
        let (offset, times) = pair.split_once(':')?;
        Some((offset.parse().ok()?, times.parse().ok()?))
    };
    text.split(',').filter_map(one).collect()
}

fn chat_answer(mut answer: AnswerParts) -> Result<ChatAnswer, Fault> {
    let key = answer.bytes()?;
    let _look = answer.number()?;
    let due = answer.number_or_none()?;
    let opened = answer.number_or_none()?.filter(|opened| *opened > 0);
    let nonce = answer.text()?;
    let is_foreign = !matches!(answer.text()?.as_str(), "" | "0");
    let token = answer.text()?;
    let (claim_opened, claim_nonce) = (answer.number_or_none()?, answer.text()?);
    let (closed, reason) = (answer.number_or_none()?, answer.text()?);
    let takeovers = answer.number_or_none()?;
    let claim = claim_opened.zip(closed).zip(takeovers).map(|((opened, closed), takeovers)| {
        ClaimNote { token, opened, nonce: claim_nonce, closed, reason, takeovers }
    });
    let (entries, sending) = (answer.number()?, answer.number()?);
    Ok(ChatAnswer { key, due, opened, nonce, is_foreign, claim, entries, sending })
}
