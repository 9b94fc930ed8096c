//! The links of an engine by number. Numbers of removed links are reused.

use super::link::Link;
use crate::command::LinkId;

/// Table of links, with holes.
#[derive(Default)]
pub(super) struct Links(Vec<Option<Link>>);

impl Links {
    /// Adds a link at the lowest free number, which it returns.
    pub(super) fn add(&mut self, link: Link) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(link);
        index
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Link> {
        self.0.get_mut(index)?.take()
    }

    /// Returns the length of the table, holes included.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Link> {
        self.0.get(index)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Link> {
        self.0.get_mut(index)?.as_mut()
    }

    /// Returns the link with this id.
    #[inline]
    pub(super) fn by_id(&mut self, id: LinkId) -> Option<&mut Link> {
        self.get_mut(usize::from(id.0))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.0.iter().flatten()
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.0.iter_mut().flatten()
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &Link)> {
        let links = self.0.iter().enumerate();
        links.filter_map(|(index, link)| Some((index, link.as_ref()?)))
    }

    pub(super) fn numbered_mut(&mut self) -> impl Iterator<Item = (usize, &mut Link)> {
        let links = self.0.iter_mut().enumerate();
        links.filter_map(|(index, link)| Some((index, link.as_mut()?)))
    }

    /// Returns the numbers in use.
    pub(super) fn numbers(&self) -> Vec<usize> {
        self.numbered().map(|(index, _)| index).collect()
    }
}
