//! Says what a picture of the demo model shows, and how much of it the caption asked for.
//!
//! By colour and geometry alone, and blind: [`read()`] never learns what was asked for. What it knows of the scenes
//! (colours, and the forms as masks) comes from the generator of the training pictures, `tests/data/demo`.
//! Only pictures of 128 x 128 px, the size that the model was trained on.

mod captions;
mod marks;
mod palette;
mod picture;
mod read;

pub use self::{
    captions::{Caption, Kind, Thing, held_out},
    marks::{Marks, Tally, mark},
    palette::{Form, Palette},
    picture::{Picture, Unreadable},
    read::{Seen, SeenThing, read},
};

#[cfg(test)]
mod tests;
