"""Distributions over weights and features that several methods share."""
