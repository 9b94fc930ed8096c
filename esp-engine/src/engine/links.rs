//! The links of an engine by number. Numbers of removed links are reused.

use super::link::Link;
use crate::command::LinkId;

/// Table of links, with holes.
#[derive(Default)]
pub(super) struct Links(Vec<Option<Link>>);

impl Links {
    /// Adds a link at the lowest free number, which it returns; `None` if all are in use.
    pub(super) fn add(&mut self, link: Link) -> Option<LinkId> {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        let id = LinkId(u16::try_from(index).ok()?);
        if free.is_none() {
            self.0.push(None);
        }
        self.0[index] = Some(link);
        Some(id)
    }

    pub(super) fn take(&mut self, id: LinkId) -> Option<Link> {
        self.0.get_mut(usize::from(id.0))?.take()
    }

    #[inline]
    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    /// Returns all numbers, including those of holes.
    #[inline]
    pub(super) fn numbers(&self) -> impl Iterator<Item = LinkId> + use<> {
        // `add` returns no greater numbers.
        (0..self.0.len()).map(|index| LinkId(index as u16))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.0.iter().flatten()
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.0.iter_mut().flatten()
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        let links = self.numbers().zip(&self.0);
        links.filter_map(|(id, link)| Some((id, link.as_ref()?)))
    }

    pub(super) fn numbered_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut Link)> {
        let links = self.numbers().zip(&mut self.0);
        links.filter_map(|(id, link)| Some((id, link.as_mut()?)))
    }
}
