//! From pixels to words.

use super::{
    palette::{BOX, Form, Palette},
    picture::Picture,
};

/// A pixel belongs to a thing when it is nearer to some colour of things than to the background, by more than this
/// (Euclidean, sRGB). Two colours of the palette are 110 apart and more.
const MARGIN: f32 = 12.0;

/// Less is a speck: the smallest form, a small cross, has 375 px.
const THING_PIXELS_MIN: usize = 40;

/// Pieces of one thing, such as the strokes of a letter that fell apart, lie closer to each other than this, in px. Two
/// things lie 8 px apart and more.
const GAP_MAX: usize = 4;

/// Where boxes begin along an axis: top, middle, bottom, or left, centre, right.
const ORIGINS: [usize; 3] = [0, 32, 64];

/// What a picture shows.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Seen {
    /// A name of the palette.
    pub background: String,
    /// The largest first.
    pub things: Vec<SeenThing>,
}

/// One thing of it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SeenThing {
    /// A name of the palette.
    pub colour: String,
    /// 0, 1, 2: top, middle, bottom.
    pub row: usize,
    /// 0, 1, 2: left, centre, right.
    pub column: usize,
    /// The one that it covers best.
    #[serde(flatten)]
    pub form: Form,
    /// How well: pixels in both over pixels in either, 0 to 1.
    pub overlap: f64,
}

/// Says what `picture` shows.
pub fn read(picture: &Picture, palette: &Palette) -> Seen {
    let backgrounds: Vec<[u8; 3]> = palette.backgrounds.values().copied().collect();
    let colours: Vec<[u8; 3]> = palette.colours.values().copied().collect();
    let at = background(picture, &backgrounds, &colours);
    let is_thing: Vec<bool> = picture
        .pixels
        .iter()
        .map(|&pixel| {
            let from_things = distance(nearest(pixel, &colours).1);
            distance(squared(pixel, backgrounds[at])) > from_things + MARGIN
        })
        .collect();
    let mut regions = joined(regions(&is_thing, picture.width));
    regions.retain(|region| region.pixels.len() >= THING_PIXELS_MIN);
    regions.sort_by_key(|region| std::cmp::Reverse(region.pixels.len()));
    Seen {
        background: name(palette.backgrounds.keys(), at),
        things: regions
            .iter()
            .map(|region| read_thing(region, picture, palette))
            .collect(),
    }
}

/// Index of the background that most pixels are nearest to.
fn background(picture: &Picture, backgrounds: &[[u8; 3]], colours: &[[u8; 3]]) -> usize {
    let mut votes = vec![0; backgrounds.len()];
    for &pixel in &picture.pixels {
        let (at, squares) = nearest(pixel, backgrounds);
        if squares <= nearest(pixel, colours).1 {
            votes[at] += 1;
        }
    }
    (0..votes.len())
        .max_by_key(|&at| votes[at])
        .expect("the palette has backgrounds")
}

fn name<'a>(mut names: impl Iterator<Item = &'a String>, at: usize) -> String {
    names.nth(at).expect("the index came from there").clone()
}

/// Index of the nearest colour, and its squared distance.
fn nearest(pixel: [u8; 3], colours: &[[u8; 3]]) -> (usize, i32) {
    let mut best = (0, i32::MAX);
    for (at, &colour) in colours.iter().enumerate() {
        let squares = squared(pixel, colour);
        if squares < best.1 {
            best = (at, squares);
        }
    }
    best
}

fn squared(a: [u8; 3], b: [u8; 3]) -> i32 {
    let difference = |channel: usize| i32::from(a[channel]) - i32::from(b[channel]);
    let [r, g, b] = [difference(0), difference(1), difference(2)];
    r * r + g * g + b * b
}

#[expect(clippy::cast_precision_loss, reason = "at most 3 * 255 * 255")]
fn distance(squared: i32) -> f32 {
    (squared as f32).sqrt()
}

/// Pixels that hang together, and the smallest rectangle around them (last row and column included).
#[derive(Debug, Clone)]
struct Region {
    pixels: Vec<(usize, usize)>,
    rows: (usize, usize),
    columns: (usize, usize),
}

impl Region {
    fn of(pixels: Vec<(usize, usize)>) -> Self {
        let bounds = |values: &dyn Fn(&(usize, usize)) -> usize| {
            let all = || pixels.iter().map(values);
            (all().min().unwrap_or(0), all().max().unwrap_or(0))
        };
        let (rows, columns) = (bounds(&|pixel| pixel.0), bounds(&|pixel| pixel.1));
        Self {
            pixels,
            rows,
            columns,
        }
    }

    fn is_near(&self, other: &Self) -> bool {
        let gap = |a: (usize, usize), b: (usize, usize)| a.0.max(b.0).saturating_sub(a.1.min(b.1));
        gap(self.rows, other.rows) <= GAP_MAX && gap(self.columns, other.columns) <= GAP_MAX
    }
}

/// Diagonal neighbours hang together.
fn regions(is_thing: &[bool], width: usize) -> Vec<Region> {
    let height = is_thing.len() / width;
    let mut unseen = is_thing.to_vec();
    let mut regions = Vec::new();
    for start in 0..unseen.len() {
        if !unseen[start] {
            continue;
        }
        unseen[start] = false;
        let mut pixels = Vec::new();
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            let (row, column) = (at / width, at % width);
            pixels.push((row, column));
            for row in row.saturating_sub(1)..(row + 2).min(height) {
                for column in column.saturating_sub(1)..(column + 2).min(width) {
                    let next = row * width + column;
                    if unseen[next] {
                        unseen[next] = false;
                        open.push(next);
                    }
                }
            }
        }
        regions.push(Region::of(pixels));
    }
    regions
}

fn joined(mut parts: Vec<Region>) -> Vec<Region> {
    let mut whole: Vec<Region> = Vec::new();
    while let Some(part) = parts.pop() {
        match whole.iter().position(|region| region.is_near(&part)) {
            // It has grown and may now be near to others.
            Some(index) => {
                let mut pixels = whole.swap_remove(index).pixels;
                pixels.extend(part.pixels);
                parts.push(Region::of(pixels));
            }
            None => whole.push(part),
        }
    }
    whole
}

fn read_thing(region: &Region, picture: &Picture, palette: &Palette) -> SeenThing {
    let (row, column) = (place(region.rows), place(region.columns));
    let mut covered = vec![false; BOX * BOX];
    let mut outside = 0_usize;
    for &(y, x) in &region.pixels {
        let at = y
            .checked_sub(ORIGINS[row])
            .zip(x.checked_sub(ORIGINS[column]));
        match at.filter(|&(y, x)| y < BOX && x < BOX) {
            Some((y, x)) => covered[y * BOX + x] = true,
            None => outside += 1,
        }
    }
    let (form, overlap) = palette
        .forms
        .iter()
        .map(|(form, mask)| (form, overlap(&covered, outside, mask)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("the palette has forms");
    SeenThing {
        colour: colour(region, picture, palette),
        row,
        column,
        form: form.clone(),
        overlap,
    }
}

/// By the middle of its extent, not by its centre of mass: that of a triangle lies low.
fn place(bounds: (usize, usize)) -> usize {
    let twice_the_middle = bounds.0 + bounds.1 + 1;
    let distance = |place: &usize| twice_the_middle.abs_diff(2 * ORIGINS[*place] + BOX);
    (0..ORIGINS.len())
        .min_by_key(distance)
        .expect("there are three places")
}

/// Intersection over union.
#[expect(clippy::cast_precision_loss, reason = "at most 16,384 pixels")]
fn overlap(covered: &[bool], outside: usize, mask: &[u8]) -> f64 {
    let (mut both, mut either) = (0, outside);
    for (&covered, &mask) in covered.iter().zip(mask) {
        let inside = mask >= 128;
        both += usize::from(covered && inside);
        either += usize::from(covered || inside);
    }
    both as f64 / either as f64
}

/// Nearest to the median of each channel: the edges are mixtures with the background.
fn colour(region: &Region, picture: &Picture, palette: &Palette) -> String {
    let median = |channel: usize| {
        let at = |&(y, x): &(usize, usize)| picture.pixels[y * picture.width + x][channel];
        let mut values: Vec<u8> = region.pixels.iter().map(at).collect();
        let middle = values.len() / 2;
        *values.select_nth_unstable(middle).1
    };
    let colours: Vec<[u8; 3]> = palette.colours.values().copied().collect();
    let (at, _) = nearest([0, 1, 2].map(median), &colours);
    name(palette.colours.keys(), at)
}
