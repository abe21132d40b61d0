"""What stands around the two products: Q, K and V.

In: what looks like a product, and the values that it multiplies. Out: where Q, K and V are read (above transposes, reshapes,
repeated heads, caches), and how the operands are made of that.
"""
