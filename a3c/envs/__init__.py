"""The environments' side: layers of preprocessing, the processes that run them, a worker's end of these.

Never loads TensorFlow, and knows neither agent nor store.
"""
