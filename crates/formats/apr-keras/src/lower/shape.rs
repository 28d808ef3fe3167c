//! Layers that move elements.

use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::Layer;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn shape(&mut self, layer: &Layer) -> Option<Placed> {
        match layer.class.as_str() {
            "Flatten" => self.flatten(layer),
            "Reshape" => self.reshape(layer),
            "Permute" => self.permute(layer),
            "RepeatVector" => self.repeat(layer),
            _ => None,
        }
    }

    fn flatten(&mut self, layer: &Layer) -> Option<Placed> {
        let mut x = self.out.ordered(layer.only()?, Order::Natural)?;
        if layer.is_channels_first() && self.out.rank(x)? > 2 {
            // Channels go last, so that weights behind fit both orders.
            let last = Placed::channels_first(x);
            x = self.out.ordered(last, Order::Natural)?;
        }
        let y = self.out.main.op("Flatten", [x]).attribute("axis", 1).output(&layer.name);
        Some(Placed::natural(y))
    }

    fn reshape(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let mut shape = layer.ints("target_shape")?;
        // 0 is the batch as it is.
        shape.iter().all(|size| *size != 0).then_some(())?;
        shape.insert(0, 0);
        let shape = self.out.main.ints(&shape);
        let y = self.out.main.op("Reshape", [x, shape]).output(&layer.name);
        Some(Placed::natural(y))
    }

    fn permute(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let mut perm = layer.ints("dims")?;
        perm.insert(0, 0);
        let y = self.out.main.op("Transpose", [x]).attribute("perm", perm).output(&layer.name);
        Some(Placed::natural(y))
    }

    fn repeat(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let main = &mut self.out.main;
        let (axis, times) = (main.ints(&[1]), main.ints(&[1, layer.int("n")?, 1]));
        let row = main.op("Unsqueeze", [x, axis]).output(&format!("{}/row", layer.name));
        Some(Placed::natural(main.op("Tile", [row, times]).output(&layer.name)))
    }
}
