//! Who may do what, said a second time: whoever adds a permission to `roles.conf` adds a line here, and everybody whom that does
//! not name is tried.

use super::{
    Site,
    listed::{covers, listed},
    probe::{
        Probe,
        Verb::{self, Publish, Subscribe},
    },
};
use crate::secured::ROLES;

type Subjects = &'static [&'static str];

/// Each subject once, with all who may. The others are refused.
const MAY: &[(&str, Verb, Subjects)] = &[
    (
        "gateway ar-batcher denoiser operator watcher admin",
        Publish,
        &[
            "$JS.API.STREAM.INFO.fresco-AR",
            "$JS.API.CONSUMER.INFO.fresco-DN.all",
        ],
    ),
    (
        "gateway operator",
        Publish,
        &["fresco.ar.standard.job", "$KV.fresco-jobs.job"],
    ),
    (
        "ar-batcher operator",
        Publish,
        &["fresco.dn.standard.job.0"],
    ),
    (
        "gateway ar-batcher denoiser",
        Publish,
        &[
            "fresco.res.job.0",
            "$JS.API.DIRECT.GET.fresco-RES.fresco.res.job.0",
            "$JS.API.DIRECT.GET.KV_fresco-outputs.$KV.fresco-outputs.output",
        ],
    ),
    (
        "ar-batcher denoiser",
        Publish,
        &[
            "fresco.dead.job.0",
            "fresco.prog.job.0",
            "$KV.fresco-outputs.output",
            "$JS.API.STREAM.MSG.GET.KV_fresco-outputs",
        ],
    ),
    (
        "gateway ar-batcher operator",
        Publish,
        &["$JS.API.DIRECT.GET.KV_fresco-jobs.$KV.fresco-jobs.job"],
    ),
    (
        "gateway ar-batcher",
        Publish,
        &["$JS.API.DIRECT.GET.KV_fresco-priors.$KV.fresco-priors.prior"],
    ),
    // Signs of life: a worker's own, and the end of one that is dead.
    (
        "gateway ar-batcher denoiser watcher",
        Publish,
        &["$KV.fresco-workers.worker"],
    ),
    (
        "gateway ar-batcher denoiser operator watcher",
        Publish,
        &["$JS.API.DIRECT.GET.KV_fresco-workers"],
    ),
    (
        "watcher",
        Publish,
        &["$JS.API.DIRECT.GET.KV_fresco-workers.$KV.fresco-workers.worker"],
    ),
    (
        "gateway",
        Publish,
        &[
            "$KV.fresco-idempotency.key",
            "$JS.API.DIRECT.GET.KV_fresco-idempotency.$KV.fresco-idempotency.key",
            "$JS.API.STREAM.MSG.GET.KV_fresco-idempotency",
            "$JS.API.DIRECT.GET.fresco-RES",
            // What waits, to tell of its age and to take it out: prompts and prior tokens.
            "$JS.API.STREAM.MSG.GET.fresco-AR",
            "$JS.API.STREAM.MSG.GET.fresco-DN",
            "$JS.API.STREAM.MSG.DELETE.fresco-AR",
            "$JS.API.STREAM.MSG.DELETE.fresco-DN",
            "$JS.API.STREAM.PURGE.KV_fresco-jobs",
        ],
    ),
    (
        "ar-batcher",
        Publish,
        &[
            "$KV.fresco-priors.prior",
            "$JS.API.CONSUMER.MSG.NEXT.fresco-AR.standard",
        ],
    ),
    (
        "denoiser",
        Publish,
        &["$JS.API.CONSUMER.MSG.NEXT.fresco-DN.all"],
    ),
    // The shorter form of the subject and the longer one, and each with the other queue's name where the other form has its stream:
    // whose message it is stands in the third place or the fifth, by the length.
    (
        "ar-batcher watcher",
        Publish,
        &[
            "$JS.ACK.fresco-AR.standard.1.1.1.1.0",
            "$JS.ACK.fresco-AR.standard.fresco-DN.1.1.1.0",
            "$JS.ACK._.hash.fresco-AR.standard.1.1.1.1.0",
            "$JS.ACK.fresco-DN.hash.fresco-AR.standard.1.1.1.1.0",
        ],
    ),
    (
        "denoiser watcher",
        Publish,
        &[
            "$JS.ACK.fresco-DN.all.1.1.1.1.0",
            "$JS.ACK.fresco-DN.all.fresco-AR.1.1.1.0",
            "$JS.ACK._.hash.fresco-DN.all.1.1.1.1.0",
            "$JS.ACK.fresco-AR.hash.fresco-DN.all.1.1.1.1.0",
        ],
    ),
    (
        "operator",
        Publish,
        &[
            "$JS.API.STREAM.MSG.GET.KV_fresco-jobs",
            "$JS.API.DIRECT.GET.fresco-DEAD",
            "$JS.API.DIRECT.GET.fresco-DEAD.fresco.dead.job.0",
            "$JS.API.STREAM.PURGE.fresco-DEAD",
        ],
    ),
    (
        "operator watcher",
        Publish,
        &[
            "$JS.API.STREAM.CREATE.fresco-AR",
            "$JS.API.STREAM.CREATE.fresco-DN",
            "$JS.API.STREAM.CREATE.fresco-RES",
            "$JS.API.STREAM.CREATE.fresco-DEAD",
            "$JS.API.STREAM.CREATE.KV_fresco-jobs",
            "$JS.API.STREAM.CREATE.KV_fresco-idempotency",
        ],
    ),
    (
        "operator watcher admin",
        Publish,
        &[
            "$JS.API.STREAM.CREATE.KV_fresco-outputs",
            "$JS.API.STREAM.CREATE.KV_fresco-priors",
            "$JS.API.STREAM.CREATE.KV_fresco-workers",
            "$JS.API.CONSUMER.CREATE.fresco-AR.high",
            "$JS.API.CONSUMER.CREATE.fresco-AR.standard",
            "$JS.API.CONSUMER.CREATE.fresco-AR.low",
            "$JS.API.CONSUMER.CREATE.fresco-DN.all",
        ],
    ),
    (
        "admin",
        Publish,
        &[
            "$JS.API.STREAM.UPDATE.fresco-AR",
            "$JS.API.STREAM.UPDATE.fresco-DN",
            "$JS.API.STREAM.UPDATE.fresco-RES",
            "$JS.API.STREAM.UPDATE.fresco-DEAD",
            "$JS.API.STREAM.UPDATE.KV_fresco-jobs",
            "$JS.API.STREAM.UPDATE.KV_fresco-outputs",
            "$JS.API.STREAM.UPDATE.KV_fresco-idempotency",
            "$JS.API.STREAM.UPDATE.KV_fresco-priors",
            "$JS.API.STREAM.UPDATE.KV_fresco-workers",
            "$JS.API.STREAM.DELETE.KV_fresco-outputs",
            "$JS.API.STREAM.DELETE.KV_fresco-priors",
            "$JS.API.STREAM.DELETE.KV_fresco-workers",
        ],
    ),
    ("gateway", Subscribe, &["_INBOX_fresco_gateway.>"]),
    ("ar-batcher", Subscribe, &["_INBOX_fresco_ar-batcher.>"]),
    ("denoiser", Subscribe, &["_INBOX_fresco_denoiser.>"]),
    ("operator", Subscribe, &["_INBOX_fresco_operator.>"]),
    ("watcher", Subscribe, &["_INBOX_fresco_watcher.>"]),
    ("admin", Subscribe, &["_INBOX_fresco_admin.>"]),
    ("gateway ar-batcher denoiser", Subscribe, &["fresco.done.>"]),
    ("gateway", Subscribe, &["fresco.prog.>"]),
    (
        "system",
        Subscribe,
        &["$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT"],
    ),
];

/// What no role may do: change or read what others have, or take part in what is not the deployment's.
const NOBODY: &[(Verb, Subjects)] = &[
    (
        Publish,
        &[
            "$JS.API.STREAM.DELETE.fresco-AR",
            "$JS.API.STREAM.DELETE.fresco-RES",
            "$JS.API.STREAM.DELETE.KV_fresco-jobs",
            "$JS.API.STREAM.PURGE.fresco-RES",
            "$JS.API.STREAM.PURGE.fresco-AR",
            "$JS.API.STREAM.CREATE.another",
            "$JS.API.STREAM.UPDATE.another",
            "$JS.API.STREAM.MSG.DELETE.fresco-RES",
            "$JS.API.STREAM.SNAPSHOT.fresco-AR",
            "$JS.API.STREAM.LEADER.STEPDOWN.fresco-AR",
            "$JS.API.STREAM.MSG.GET.fresco-RES",
            "$JS.API.CONSUMER.DELETE.fresco-DN.all",
            "$JS.API.CONSUMER.CREATE.fresco-RES.mine",
            "$JS.API.CONSUMER.CREATE.fresco-AR.mine",
            "$JS.API.CONSUMER.CREATE.fresco-DN.mine",
            "$JS.API.CONSUMER.DURABLE.CREATE.fresco-DN.mine",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.SERVER.PING.STATSZ",
            "fresco.done.job.0",
            "another.ar.standard.job",
        ],
    ),
    (
        Subscribe,
        &[
            ">",
            "fresco.>",
            "fresco.ar.>",
            "fresco.dn.>",
            "fresco.res.>",
            "$KV.>",
            "$JS.>",
            "$SYS.>",
            "$SYS.ACCOUNT.*.SERVER.CONNS",
            "_INBOX.>",
        ],
    ),
];

fn may(who: &str, role: &str) -> bool {
    who.split(' ').any(|one| one == role)
}

#[test]
fn every_permission_of_a_role_is_in_the_table() {
    for one in listed() {
        let its =
            |(who, verb, _): &&(&str, Verb, Subjects)| may(who, &one.role) && *verb == one.verb;
        let mut subjects = MAY
            .iter()
            .filter(its)
            .flat_map(|(_, _, subjects)| *subjects);
        assert!(
            subjects.any(|subject| covers(&one.pattern, subject)),
            "{one:?}"
        );
    }
}

#[tokio::test]
async fn each_role_is_refused_what_is_none_of_its_part() {
    let site = Site::start();
    for role in ROLES {
        let mut probe = Probe::connect(&site, role).await;
        for (who, verb, subjects) in MAY {
            for subject in *subjects {
                if may(who, role) {
                    probe.does(*verb, subject).await;
                } else {
                    probe.violates(*verb, subject).await;
                }
            }
        }
        for (verb, subjects) in NOBODY {
            for subject in *subjects {
                probe.violates(*verb, subject).await;
            }
        }
    }
}
