"""Model families as plain values: configurations, presets, controls and edit plans. No torch."""
