"""Degradations of clean audio."""
