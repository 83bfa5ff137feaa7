//! The bus: everything Fresco does on NATS JetStream. The only crate that knows the client library.
//!
//! It moves `protocol` messages and knows nothing of pictures, models or HTTP. Why it has its own worker loop,
//! publish wrapper and results matching instead of the client's: each of the client's comforts loses or hoards
//! messages in some failure (measured; ARCHITECTURE.md, "The bus").
//!
//! | module       | does                                                                    |
//! |--------------|-------------------------------------------------------------------------|
//! | `access`     | credentials and certificates                                            |
//! | `bus`        | the connection                                                          |
//! | `reads`      | results, records and workers                                            |
//! | `asking`     | what is to be asked, each key once at a time, pure                      |
//! | `copies`     | reads in a cluster, where a copy may be behind                          |
//! | `provision`  | creates and verifies streams, consumers and buckets                     |
//! | `inspect`    | tells everything about them that is not as it should be                 |
//! | `change`     | brings what is not as it should be to that, when a person says so       |
//! | `upkeep`     | keeps them there                                                        |
//! | `publish`    | the one way a message gets into a stream; the fence of results          |
//! | `pull`       | the rules of the worker loop, pure                                      |
//! | `inbox`      | tells messages from answers                                             |
//! | `worker_loop`| the worker loop: pulls, holds, gives back                               |
//! | `work_queue` | its owner's end: the next message, please                               |
//! | `lease`      | a held message in the hands of its worker                               |
//! | `membership` | a worker's place in a deployment                                        |
//! | `results`    | results matched to those who wait for them                              |
//! | `presence`   | the sign of life of a worker                                            |
//! | `priors`     | stored prior tokens, a cache                                            |
//! | `lives`      | lives of outputs, moved on by compare-and-set                           |
//! | `ends`       | tells a worker that what it works on has ended                          |
//! | `queues`     | what the queues say of themselves; what is taken out of them            |
//! | `measures`   | what the broker says, in numbers for metrics                            |
//! | `dead`       | the dead letters                                                        |
//! | `idempotency`| whose a client's key is                                                 |
//! | `system`     | who connects and who is gone, from the broker's system account          |
//! | `trace`      | trace context in headers                                                |
//! | `span`       | the spans of messages, and of attempts that were lost                    |

mod access;
mod asking;
mod bus;
mod change;
mod connection;
mod copies;
mod dead;
mod end_notice;
mod ends;
mod error;
mod idempotency;
mod inbox;
mod inspect;
mod lease;
mod lives;
mod measures;
mod membership;
mod presence;
mod priors;
mod provision;
mod publish;
mod pull;
mod queues;
mod reads;
mod results;
mod server;
mod span;
mod system;
mod trace;
mod upkeep;
mod work_queue;
mod worker_loop;

pub use access::{Access, UserKey};
pub use bus::{Bus, BusConfig};
pub use change::Change;
pub use connection::{Connection, ConnectionName};
pub use dead::DEAD_LETTERS_LISTED_MAX;
pub use ends::{EndWatch, Ends, Noticed};
pub use error::{BusError, PublishError};
pub use idempotency::{Claim, ClaimError};
pub use inspect::{Finding, State, Wanted};
pub use lease::Lease;
pub use lives::KnownLife;
pub use measures::{Measures, QueueMeasure, StreamMeasure};
pub use membership::{Joining, Membership};
pub use presence::Presence;
pub use provision::{Difference, Knob, ProvisionError};
pub use publish::Fence;
pub use pull::HELD_MAX;
pub use queues::{QueueDepth, Queues, ResultsStore};
pub use results::{JobWatch, ProgressByOutput, Results, ResultsFull, WATCHES_MAX};
pub use span::Publisher;
pub use system::{ConnectionId, SystemEvent, SystemWatch};
pub use upkeep::Upkeep;
pub use work_queue::{CLOSE_MAX, Delivery, WorkQueue};
