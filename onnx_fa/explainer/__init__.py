"""What was found in a model, for people.

In: a report. Out: a page of HTML with a drawing.
"""
