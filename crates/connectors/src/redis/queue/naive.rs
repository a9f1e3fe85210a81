//! The naive versions of the scripts, for the tests that must find them. In a release build there are
//! none.

use potok_core::trouble::Plant;

/// The script, or what a planted bug makes of it.
#[cfg_attr(not(debug_assertions), allow(unused_variables, reason = "nothing is planted there"))]
pub fn script(text: String, plant: Plant) -> String {
    #[cfg(debug_assertions)]
    return patches::apply(text, plant);
    #[cfg(not(debug_assertions))]
    text
}

#[cfg(debug_assertions)]
mod patches {
    use potok_core::trouble::{Bug, Plant};

    /// The bug, what only the scripts hold that it is for, what stands there, and what the naive version has
    /// instead.
    type Patch = (Bug, &'static str, &'static str, &'static str);

    const COMPARED: &str = "if head[place] ~= entry(place) then return { 'moved' } end";
    const TRIMMED: &str = "if size > 0 then redis.call('LTRIM', list, size, -1) end";
    const PEEKED: &str = "return { num(now), found }";

    pub(super) const PATCHES: &[Patch] = &[
        (Bug::KeysByIndex, "", COMPARED, "ARGV[first + place] = head[place] or ''"),
        (
            Bug::PopsPlainly,
            "",
            PEEKED,
            "redis.call('LTRIM', list, #found, -1) return { num(now), found }",
        ),
        (Bug::PopsPlainly, "", COMPARED, ""),
        (Bug::PopsPlainly, "", TRIMMED, ""),
        (
            Bug::TakenApart,
            "",
            PEEKED,
            "for _ = 1, #found do redis.call('LMOVE', list, P .. 'taken', 'LEFT', 'RIGHT') end
             return { num(now), found }",
        ),
        (Bug::TakenApart, "", COMPARED, ""),
        (Bug::TakenApart, "", TRIMMED, ""),
        (
            Bug::OneBadStopsAll,
            "",
            "local size = redis.pcall('LLEN', batch_of(key))",
            "local size = redis.call('LLEN', batch_of(key))",
        ),
        (Bug::RefusedWhenFull, "", "redis.call('DEL', P .. 'none')", ""),
        (
            Bug::ArrivalMovesLease,
            "",
            "    elseif is_full then
      look_by(key, now)
    elseif is_new or is_sooner then
      look_by(key, now + math.min(chat.quiet, max_age))",
            "    else
      look_at(key, now + math.min(chat.quiet, max_age))",
        ),
        (Bug::ArrivalMovesLease, "", "  look_by('', now)", "  look_at('', now)"),
        (
            Bug::LockByValue,
            "",
            "if expiry == stored then return 'ours', expiry end",
            "if redis.call('GET', key) == 'processing' then return 'ours', expiry end",
        ),
        (
            Bug::AckDeletesList,
            "",
            "redis.call('UNLINK', sending_of(key))",
            "redis.call('UNLINK', sending_of(key), batch_of(key))",
        ),
        (
            Bug::NoRearm,
            "",
            "      look_at(key, now)\n      again = 1",
            "      redis.call('ZREM', DUE, key)",
        ),
        (
            Bug::AckWithoutToken,
            "local answers, again = {}, 0",
            "if not claim or claim.token ~= token then",
            "if not claim then",
        ),
        (
            Bug::ClaimAnew,
            "",
            "  claim.token, claim.trying = token, '-'",
            "  local more = redis.call('LRANGE', batch_of(key), 0, -1)
             if #more > 0 then redis.call('RPUSH', sending_of(key), unpack(more)) end
             redis.call('DEL', batch_of(key))
             claim.token, claim.trying = token, '-'",
        ),
        (
            Bug::ClaimedStayListed,
            "",
            "    redis.call('RENAME', from, to)",
            "    redis.call('COPY', from, to)",
        ),
        (
            Bug::NoMaxAge,
            "",
            "last + state.quiet, state.opened + max_age",
            "last + state.quiet, 1e16",
        ),
        (
            Bug::ClaimsTrusted,
            "local lease, answers = take_number(), {}",
            "answers[index] = 0",
            "answers[index] = 1",
        ),
        (
            Bug::OwnPushesOnly,
            "",
            "  local entries = redis.call('LRANGE', sending_of(key), 0, -1)",
            "  local entries = {}
             for _, body in ipairs(redis.call('LRANGE', sending_of(key), 0, -1)) do
               if not string.find(body, '|||', 1, true) then entries[#entries + 1] = body end
             end",
        ),
        (
            Bug::TakesAll,
            "",
            "  local limit = math.min(size, most_entries)",
            "  do return size, false end
             local limit = size",
        ),
        (
            Bug::BytesReached,
            "",
            "      if taken > 0 and bytes + more > max_bytes then return taken, true end\n",
            "",
        ),
        (
            Bug::OwnDeaths,
            "",
            "claim.token ~= '-' and not is_own(claim.token) then",
            "claim.token ~= '-' then",
        ),
        (Bug::AdoptsAtExpiry, "", "then wait = GRACE_MS end", "then wait = 0 end"),
        (Bug::FarLooksLeft, "", "for _, key in ipairs(far) do look_at(key, now + lease) end", ""),
        (
            Bug::KeysByFormat,
            "",
            "return 'queue:batch:' .. key",
            "return string.format('queue:batch:%s', key)",
        ),
        (
            Bug::WishWithoutCount,
            "",
            "wished and math.min(state.count, max_count) or max_count",
            "max_count",
        ),
        (Bug::AnyPipeline, "", "redis.call('SET', key, own, 'NX')", "redis.call('SET', key, own)"),
        (
            Bug::IndexTrusted,
            "",
            "entered = entered + redis.call('ZADD', DUE, 'NX', num(time), key)",
            "",
        ),
        (
            Bug::MarkedFirst,
            "",
            "    redis.call('RPUSH', KEYS[1], ARGV[index + 1])
    redis.call('SET', marker, '1', 'EX', ARGV[1])",
            "    redis.call('SET', marker, '1', 'EX', ARGV[1])
    redis.call('RPUSH', KEYS[1], ARGV[index + 1])",
        ),
    ];

    pub(super) fn apply(text: String, plant: Plant) -> String {
        let planted = PATCHES.iter().filter(|(bug, ..)| plant.is(*bug));
        planted.fold(text, |text, (_, marker, from, to)| match text.contains(marker) {
            true => text.replace(from, to),
            false => text,
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A script that is written anew must not leave its naive version behind.
        #[test]
        fn every_patch_still_fits_its_script() {
            let scripts = [
                include_str!("scripts/common.lua"),
                include_str!("scripts/peek.lua"),
                include_str!("scripts/sort.lua"),
                include_str!("scripts/visit.lua"),
                include_str!("scripts/ack.lua"),
                include_str!("scripts/renew.lua"),
                include_str!("scripts/scan.lua"),
                include_str!("scripts/register.lua"),
                include_str!("scripts/push.lua"),
            ];
            for (bug, marker, from, _) in PATCHES {
                let fits = |text: &&&str| text.contains(marker) && text.contains(from);
                assert!(scripts.iter().any(|text| fits(&text)), "{bug:?}: {from}");
            }
        }
    }
}
