//! Layers that make images and sequences larger or smaller.

use apr_lower::Placed;

use super::Lowering;
use super::layer::Layer;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn image(&mut self, layer: &Layer) -> Option<Placed> {
        match layer.class.as_str() {
            "ZeroPadding1D" => self.zero_padding(layer, 1),
            "ZeroPadding2D" => self.zero_padding(layer, 2),
            "ZeroPadding3D" => self.zero_padding(layer, 3),
            "Cropping1D" => self.cropping(layer, 1),
            "Cropping2D" => self.cropping(layer, 2),
            "Cropping3D" => self.cropping(layer, 3),
            "UpSampling1D" => self.up_sampling(layer, 1),
            "UpSampling2D" => self.up_sampling(layer, 2),
            "UpSampling3D" => self.up_sampling(layer, 3),
            _ => None,
        }
    }

    /// Returns the input and the axes of its spatial dimensions.
    fn spatial(&mut self, layer: &Layer, count: usize) -> Option<(Placed, Vec<i64>)> {
        let x = layer.only()?;
        let rank = count + 2;
        (self.out.rank(x.id)? == rank).then_some(())?;
        let first = if layer.is_channels_first() { 2 } else { 1 };
        let axes = (first..first + count).map(|axis| i64::try_from(x.axis(axis, rank)).ok());
        Some((x, axes.collect::<Option<_>>()?))
    }

    fn zero_padding(&mut self, layer: &Layer, count: usize) -> Option<Placed> {
        let pads = layer.pairs("padding", count)?;
        let (x, axes) = self.spatial(layer, count)?;
        let name = self.name_in(&layer.name, x.order, x.id);
        let ends = |side: usize| pads.iter().map(move |pair| pair[side]);
        let pads: Vec<i64> = ends(0).chain(ends(1)).collect();
        let main = &mut self.out.main;
        let (pads, axes) = (main.ints(&pads), main.ints(&axes));
        let node = main.op("Pad", [x.id, pads]).optional(None).optional(Some(axes));
        let id = node.attribute("mode", "constant").output(&name);
        Some(Placed { id, order: x.order })
    }

    fn cropping(&mut self, layer: &Layer, count: usize) -> Option<Placed> {
        let crops = layer.pairs("cropping", count)?;
        let (x, axes) = self.spatial(layer, count)?;
        let name = self.name_in(&layer.name, x.order, x.id);
        let starts: Vec<i64> = crops.iter().map(|pair| pair[0]).collect();
        let end = |pair: &[i64; 2]| match pair[1] {
            0 => Some(i64::MAX),
            size => size.checked_neg(),
        };
        let ends: Vec<i64> = crops.iter().map(end).collect::<Option<_>>()?;
        let main = &mut self.out.main;
        let inputs = [x.id, main.ints(&starts), main.ints(&ends), main.ints(&axes)];
        let id = main.op("Slice", inputs).output(&name);
        Some(Placed { id, order: x.order })
    }

    fn up_sampling(&mut self, layer: &Layer, count: usize) -> Option<Placed> {
        let size = layer.sizes("size", count)?;
        let (mode, coordinates) = match layer.text("interpolation").unwrap_or("nearest") {
            "nearest" => ("nearest", "asymmetric"),
            "bilinear" => ("linear", "half_pixel"),
            _ => return None,
        };
        let x = layer.only()?;
        let (id, order) = self.channels_first(layer, x, count)?;
        let name = self.name_in(&layer.name, order, id);
        #[expect(clippy::cast_precision_loss, reason = "small factors")]
        let scales: Vec<f32> = [1, 1].iter().chain(&size).map(|factor| *factor as f32).collect();
        let main = &mut self.out.main;
        let scales = main.constant(apr_graph::Constant::floats(&scales));
        let node = main.op("Resize", [id]).optional(None).optional(Some(scales));
        let node = node
            .attribute("mode", mode)
            .attribute("coordinate_transformation_mode", coordinates)
            .attribute("nearest_mode", "floor");
        Some(Placed { id: node.output(&name), order })
    }
}
