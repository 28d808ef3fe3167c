//! A grid's points by their levels, and the points around what is not one.

use alloc::vec;
use alloc::vec::Vec;

use super::super::iq_grids;

/// Values of a super-block.
pub(in super::super) const SUPER: usize = 256;

/// Values of a point of IQ1 and IQ2.
pub(in super::super) const EIGHT: usize = 8;

/// Values of a point of IQ3.
pub(in super::super) const FOUR: usize = 4;

/// Levels that a value has: three of eight values, eight of four.
const fn levels(width: usize) -> usize {
    if width == EIGHT { 3 } else { 8 }
}

/// Points of `WIDTH` values, each one of a few levels.
pub(in super::super) struct Grid<const WIDTH: usize> {
    points: Vec<[u8; WIDTH]>,
    /// Entries by number. The digits of the number are the levels, the lowest first.
    places: Vec<GridEntry>,
    /// Points by number, list after list.
    neighbours: Vec<u16>,
}

/// The entry for the levels of a group.
#[derive(Clone, Copy)]
struct GridEntry {
    /// Number of the point, or start of the list of neighbours.
    first: u32,
    /// Number of neighbours; 0 for a point.
    count: u16,
}

impl<const WIDTH: usize> Grid<WIDTH> {
    const LEVELS: usize = levels(WIDTH);

    /// Neighbours of a place are the points at its `shells` least distances, the nearest first.
    fn new(packed: &[u16], shells: usize) -> Self {
        let bits = if WIDTH == EIGHT { 2 } else { 3 };
        let unpack = |packed: &u16| {
            core::array::from_fn(|i| (packed >> (bits * i)) as u8 & ((1 << bits) - 1))
        };
        let points: Vec<[u8; WIDTH]> = packed.iter().map(unpack).collect();
        let count = Self::LEVELS.pow(WIDTH as u32);
        let mut grid = Self {
            places: vec![GridEntry { first: 0, count: 0 }; count],
            neighbours: Vec::new(),
            points,
        };
        let mut is_point = vec![false; count];
        for (number, point) in (0..).zip(&grid.points) {
            let place = Self::place(point);
            grid.places[place].first = number;
            is_point[place] = true;
        }

        let mut distances = vec![0; grid.points.len()];
        for place in (0..count).filter(|&place| !is_point[place]) {
            grid.add_neighbours(place, shells, &mut distances);
        }

        grid.neighbours.shrink_to_fit();
        grid
    }

    fn add_neighbours(&mut self, place: usize, shells: usize, distances: &mut [u8]) {
        let levels: [u8; WIDTH] =
            core::array::from_fn(|i| (place / Self::LEVELS.pow(i as u32) % Self::LEVELS) as u8);

        // Squares of distances; the greatest is 4 * 49.
        let mut present = [false; 256];
        for (distance, point) in distances.iter_mut().zip(&self.points) {
            *distance = point.iter().zip(levels).map(|(&a, b)| a.abs_diff(b).pow(2)).sum();
            present[usize::from(*distance)] = true;
        }

        let first = self.neighbours.len();
        for shell in (0..=u8::MAX).filter(|&shell| present[usize::from(shell)]).take(shells) {
            let within = (0_u16..).zip(&*distances).filter(|&(_, &distance)| distance == shell);
            self.neighbours.extend(within.map(|(number, _)| number));
        }

        self.places[place] =
            GridEntry { first: first as u32, count: (self.neighbours.len() - first) as u16 };
    }

    #[inline(always)]
    fn place(levels: &[u8; WIDTH]) -> usize {
        let (mut place, mut power) = (0, 1);
        for &level in levels {
            place += u32::from(level) * power;
            power *= Self::LEVELS as u32;
        }
        place as usize
    }

    /// Returns the number of a point, or 0 if the levels are not a point.
    #[inline(always)]
    pub(super) fn number(&self, levels: &[u8; WIDTH]) -> u16 {
        let place = self.places[Self::place(levels)];
        if place.count == 0 { place.first as u16 } else { 0 }
    }

    /// The levels of the point with this number.
    #[inline(always)]
    pub(super) fn point(&self, number: u16) -> &[u8; WIDTH] {
        &self.points[usize::from(number)]
    }

    /// Replaces levels that are not a point by those of the neighbour with the least cost.
    ///
    /// If several have the least cost, the first one is chosen. Returns `true` if the levels were a
    /// point already.
    ///
    /// `cost` returns the cost of each level at each value. The cost of a point is their sum, in
    /// order. If no cost is a number, the first neighbour is chosen.
    #[inline(always)]
    pub(super) fn settle(
        &self,
        levels: &mut [u8; WIDTH],
        cost: impl FnOnce() -> Costs<WIDTH>,
    ) -> bool {
        let GridEntry { first, count } = self.places[Self::place(levels)];
        if count == 0 {
            return true;
        }
        let cost = cost();
        let neighbours = &self.neighbours[first as usize..][..usize::from(count)];
        let (mut least, mut best) = (f32::MAX, neighbours[0]);
        for &number in neighbours {
            let sum = cost.of(&self.points[usize::from(number)]);
            (least, best) = if sum < least { (sum, number) } else { (least, best) };
        }
        *levels = self.points[usize::from(best)];
        false
    }
}

/// Cost of each level at each value of a group.
pub(super) struct Costs<const WIDTH: usize>([[f32; 8]; WIDTH]);

impl<const WIDTH: usize> Costs<WIDTH> {
    /// Computes the costs: weight times the squared difference of a value and its level's value.
    #[inline(always)]
    pub(super) fn new(
        values: &[f32; WIDTH],
        weights: &[f32; WIDTH],
        of_level: impl Fn(usize) -> f32,
    ) -> Self {
        let mut costs = [[0.0; 8]; WIDTH];
        for ((costs, &value), &weight) in costs.iter_mut().zip(values).zip(weights) {
            for (level, cost) in costs[..levels(WIDTH)].iter_mut().enumerate() {
                let difference = of_level(level) - value;
                *cost = weight * difference * difference;
            }
        }
        Self(costs)
    }

    #[inline(always)]
    fn of(&self, point: &[u8; WIDTH]) -> f32 {
        let mut sum = 0.0;
        for (costs, &level) in self.0.iter().zip(point) {
            sum += costs[usize::from(level & 7)];
        }
        sum
    }
}

macro_rules! grids {
    ($($(#[$doc:meta])* $name:ident: $width:ident, $packed:ident, $shells:literal;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(run: impl FnOnce(&Grid<$width>)) {
            // Without the standard library there is no place where it could be kept.
            #[cfg(feature = "std")]
            {
                static GRID: std::sync::OnceLock<Grid<$width>> = std::sync::OnceLock::new();
                run(GRID.get_or_init(|| Grid::new(&iq_grids::$packed, $shells)));
            }
            #[cfg(not(feature = "std"))]
            run(&Grid::new(&iq_grids::$packed, $shells));
        }
    )*};
}

grids! {
    /// IQ1_S and IQ1_M.
    iq1: EIGHT, IQ1_PACKED, 3;
    /// Grid of IQ2_XXS.
    iq2_xxs: EIGHT, IQ2_XXS_PACKED, 2;
    /// Grid of IQ2_XS.
    iq2_xs: EIGHT, IQ2_XS_PACKED, 2;
    /// Grid of IQ2_S.
    iq2_s: EIGHT, IQ2_S_PACKED, 1;
    /// Grid of IQ3_XXS.
    iq3_xxs: FOUR, IQ3_XXS_PACKED, 2;
    /// Grid of IQ3_S.
    iq3_s: FOUR, IQ3_S_PACKED, 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const WIDTH: usize>(grid: &Grid<WIDTH>) {
        for (number, point) in (0..).zip(&grid.points) {
            assert_eq!(grid.number(point), number);
        }
        let places = grid.places.iter().filter(|place| place.count == 0).count();
        assert_eq!(
            places,
            grid.points.len(),
            "no two points in one place, and no place without neighbours"
        );
        assert!(grid.neighbours.len() < 600_000, "{}", grid.neighbours.len());
    }

    #[test]
    fn every_place_has_a_point_or_neighbours() {
        iq1(check);
        iq2_xxs(check);
        iq2_xs(check);
        iq2_s(check);
        iq3_xxs(check);
        iq3_s(check);
    }

    #[test]
    fn levels_off_the_grid_become_the_neighbour_with_the_least_cost() {
        iq2_xxs(|grid| {
            for place in 0..grid.places.len() {
                let mut levels: [u8; 8] =
                    core::array::from_fn(|i| (place / 3_usize.pow(i as u32) % 3) as u8);
                let values = levels.map(f32::from);
                let was_point = grid
                    .settle(&mut levels, || Costs::new(&values, &[1.0; 8], |level| level as f32));
                assert_eq!(was_point, grid.places[place].count == 0);
                let distance = |point: &[u8; 8]| -> f32 {
                    values
                        .iter()
                        .zip(point)
                        .map(|(value, &level)| (value - f32::from(level)).powi(2))
                        .sum()
                };
                assert!(grid.points.iter().all(|point| distance(&levels) <= distance(point)));
            }
        });
    }
}
