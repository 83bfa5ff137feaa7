use super::{
    Caption, Form, Kind, Marks, Palette, Picture, Tally, Thing, held_out, mark, palette::BOX, read,
};

const SIDE: usize = 128;

/// The picture of a caption as the generator of the training pictures draws it.
fn draw(caption: &Caption, palette: &Palette) -> Picture {
    let background = palette.backgrounds[&caption.background];
    let mut pixels = vec![background; SIDE * SIDE];
    for thing in &caption.things {
        let (_, mask) = palette
            .forms
            .iter()
            .find(|(form, _)| *form == thing.form)
            .unwrap();
        let colour = palette.colours[&thing.colour];
        for (at, &coverage) in mask.iter().enumerate() {
            let (y, x) = (32 * thing.row + at / BOX, 32 * thing.column + at % BOX);
            let pixel = &mut pixels[y * SIDE + x];
            *pixel = [0, 1, 2].map(|channel| mixed(pixel[channel], colour[channel], coverage));
        }
    }
    Picture {
        width: SIDE,
        height: SIDE,
        pixels,
    }
}

fn mixed(under: u8, over: u8, coverage: u8) -> u8 {
    let [under, over, coverage] = [under, over, coverage].map(u32::from);
    u8::try_from((under * (255 - coverage) + over * coverage + 127) / 255).unwrap()
}

fn marks_of(asked: &Caption, painted: &Caption, palette: &Palette) -> Marks {
    mark(asked, &read(&draw(painted, palette), palette))
}

const ALL: Marks = Marks {
    background: 1.0,
    colour: 1.0,
    form: 1.0,
    size: 1.0,
    place: 1.0,
    whole: 1.0,
};

const WRONG: Marks = Marks { whole: 0.0, ..ALL };

#[test]
fn every_held_out_scene_is_read_as_it_was_drawn() {
    let (captions, palette) = (held_out(), Palette::load());
    let of = |kind| captions.iter().filter(move |caption| caption.kind == kind);
    for kind in [Kind::Single, Kind::Pair, Kind::Letter] {
        assert_eq!(of(kind).count(), 200);
    }
    for caption in &captions {
        assert_eq!(marks_of(caption, caption, &palette), ALL, "{caption:?}");
    }
}

/// A caption of this kind, and another one that differs in what `change` does.
fn changed(kind: Kind, change: impl Fn(&mut Caption)) -> (Caption, Caption) {
    let asked = held_out()
        .into_iter()
        .find(|caption| caption.kind == kind)
        .unwrap();
    let mut painted = asked.clone();
    change(&mut painted);
    assert_ne!(asked, painted);
    (asked, painted)
}

fn other_colour(thing: &mut Thing) {
    let other = if thing.colour == "cyan" {
        "yellow"
    } else {
        "cyan"
    };
    other.clone_into(&mut thing.colour);
}

#[test]
fn an_object_painted_otherwise_is_wrong_in_that_and_nothing_else() {
    assert_marks(&[
        (
            changed(Kind::Single, |c| "beige".clone_into(&mut c.background)),
            Marks {
                background: 0.0,
                ..WRONG
            },
        ),
        (
            changed(Kind::Single, |c| other_colour(&mut c.things[0])),
            Marks {
                colour: 0.0,
                ..WRONG
            },
        ),
        (
            // The first asks for a big star.
            changed(Kind::Single, |c| c.things[0].form = circle()),
            Marks { form: 0.0, ..WRONG },
        ),
        (
            changed(Kind::Single, |c| c.things[0].row = 0),
            Marks {
                place: 0.0,
                ..WRONG
            },
        ),
        (changed(Kind::Single, |c| c.things.push(speck(c))), WRONG),
    ]);
}

#[test]
fn half_a_pair_is_half_right() {
    assert_marks(&[
        (
            changed(Kind::Pair, |c| other_colour(&mut c.things[1])),
            Marks {
                colour: 0.5,
                ..WRONG
            },
        ),
        (
            changed(Kind::Pair, |c| c.things.truncate(1)),
            Marks {
                colour: 0.5,
                form: 0.5,
                size: 0.5,
                place: 0.5,
                ..WRONG
            },
        ),
    ]);
}

#[test]
fn another_letter_or_no_letter_is_wrong() {
    assert_marks(&[
        (
            changed(Kind::Letter, |c| {
                c.things[0].form = Form::Letter {
                    letter: "O".to_owned(),
                }
            }),
            Marks {
                form: 0.0,
                size: 0.0,
                ..WRONG
            },
        ),
        (
            changed(Kind::Letter, |c| c.things[0].form = circle()),
            Marks {
                form: 0.0,
                size: 0.0,
                ..WRONG
            },
        ),
    ]);
}

fn circle() -> Form {
    Form::Object {
        shape: "circle".to_owned(),
        size: "big".to_owned(),
    }
}

fn assert_marks(table: &[((Caption, Caption), Marks)]) {
    let palette = Palette::load();
    for ((asked, painted), expected) in table {
        let marks = marks_of(asked, painted, &palette);
        assert_eq!(marks, *expected, "{asked:?} {painted:?}");
    }
}

/// A small thing that nobody asked for, far from the first one.
fn speck(caption: &Caption) -> Thing {
    let first = &caption.things[0];
    Thing {
        colour: first.colour.clone(),
        row: 2 - first.row,
        column: 2 - first.column,
        form: Form::Object {
            shape: "cross".to_owned(),
            size: "small".to_owned(),
        },
    }
}

#[test]
fn a_letter_that_fell_apart_is_one_letter() {
    let palette = Palette::load();
    let (asked, _) = changed(Kind::Letter, |c| c.things.clear());
    let mut picture = draw(&asked, &palette);
    // Two rows of background through the middle of its box.
    let top = 32 * asked.things[0].row + BOX / 2;
    let background = palette.backgrounds[&asked.background];
    picture.pixels[top * SIDE..(top + 2) * SIDE].fill(background);
    assert_eq!(mark(&asked, &read(&picture, &palette)), ALL);
}

#[test]
fn noise_is_no_scene() {
    let palette = Palette::load();
    // A linear congruential generator: any noise does.
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let pixels = (0..SIDE * SIDE).map(|_| [next(), next(), next()]).collect();
    let picture = Picture {
        width: SIDE,
        height: SIDE,
        pixels,
    };
    let seen = read(&picture, &palette);
    let mut tally = Tally::default();
    for caption in held_out() {
        tally.add(caption.kind, &mark(&caption, &seen));
    }
    for kind in [Kind::Single, Kind::Pair, Kind::Letter] {
        assert!(tally.shares(kind).whole < 0.01, "{tally}");
        assert!(tally.shares(kind).form < 0.2, "{tally}");
    }
}
